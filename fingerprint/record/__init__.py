"""What watches a run.

It runs inside somebody's training job: it imports torch, numpy, xxhash and pyarrow only, changes
no bit of what the program computes, and stops itself rather than the program when it fails.

settings     what to record, and how it travels to child processes
launch       what launchers put into the environment
launcher     starts a command with the recorder in every Python process below it
remote       ... whose run goes to object storage
startup/     the `sitecustomize` that those processes run
inline       recording from code
arming       puts the hooks in when torch has been imported, takes them out again
current      the recorder of this process, behind `fpdiff.step`, `log` and `mark`
script       the bodies of those three
recorder     steps, sites and events: every hook's way to the store
sitetable    numbers of sites
source       the line of the program that is running
lines        the line that an event is told to be at
steprow      the digests of a closed step
stepwriter   puts steps on disk in order, each when its digests have arrived
warning      warnings that cannot harm the program
quiet        how a hook looks without disturbing
scopes       the stack of running module calls
modules      module hooks: batch, inputs, outputs
backward     losses, gradients of module outputs and parameters
optimizer    gradients as the optimizer sees them, and what it made of them
optimizing   which optimizer is at work
state        everything that a step starts from
discovery    finds optimizers, scalers and modules that no hook has shown
identity     a table keyed by live objects
names        paths of modules and parameters
generators   states of random generators, and who drew from them
dataflow     which event recorded a tensor last
ops          every operator that runs, at rung op
opschema     what an operator reads, writes and returns
opvalues     the tensors and other values that an operator is given and returns
opcall       one call of an operator
kernels      kernels that Triton launches, at rung kernel
devicekernels  names of the kernels that operators launch on a device, at rung kernel
tritonpath   where Triton launches a kernel
inductor     compiled code, which is left opaque
rehearsal    what is run only to learn shapes, and not recorded
writers      which events wrote the memory that an operator reads
prelude      operators between two steps, until it is known to which they belong
nodes        which module call and line an autograd node comes from
collectives  what a rank gives and gets, and with whom
handles      where Python calls collectives and waits for them, at rung layer
wrapping     puts functions of the recorder's around others of torch or Triton
containers   tensors inside arguments and outputs
environment  versions, flags, devices, process groups
process      which rank this process is
watch        the parameters after each optimizer step, for `fpdiff verify`
runfolder    creates the run's folder and run.json
"""
