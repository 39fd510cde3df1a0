"""What a step starts from, and what optimizers make of it.

optimizer     gradients as the optimizer sees them, and what it made of them
optimizing    which optimizer is at work
stepstate     everything that a step starts from
stepsettings  training flags, optimizer options, gradient scalers
places        what a tensor that an optimizer updates is called, and its points
values        events of the values that an optimizer or a scaler holds
standing      a tensor that lies where it lay in the step before
discovery     finds optimizers, scalers and modules that no hook has shown
"""
