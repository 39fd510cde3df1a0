"""What a step starts from, and what optimizers make of it.

optimizer   gradients as the optimizer sees them, and what it made of them
optimizing  which optimizer is at work
stepstate   everything that a step starts from
discovery   finds optimizers, scalers and modules that no hook has shown
"""
