"""Calls of modules: their names, what they were given and returned, and the gradients of it.

scopes      the stack of running module calls
hooks       module hooks: batch, inputs, outputs
backward    losses, gradients of module outputs and parameters
names       paths of modules and parameters
rehearsal   what is run only to learn shapes, and not recorded
nodes       which module call and line an autograd node comes from
containers  tensors inside arguments and outputs
"""
