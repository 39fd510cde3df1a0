"""Operators, collectives and kernels: what each of them read and wrote.

mode           every operator that runs, at rung op
schema         what an operator reads, writes and returns
values         the tensors and other values that an operator is given and returns
call           one call of an operator
kernels        kernels that Triton launches, at rung kernel
devicekernels  names of the kernels that operators launch on a device, at rung kernel
tritonpath     where Triton launches a kernel
inductor       compiled code, an operator each graph
writers        which events wrote the memory that an operator reads
collectives    what a rank gives and gets, and with whom
handles        where Python calls collectives and waits for them, at rung layer
"""
