"""What watches a run.

It runs inside somebody's training job: it imports torch, numpy, xxhash and pyarrow only, changes
no bit of what the program computes, and stops itself rather than the program when it fails.

settings    what to record, and how it travels to child processes
startup/    the `sitecustomize` that those processes run
inline      recording from code
arming      puts the hooks in when torch has been imported, takes them out again
current     the recorder of this process, behind `fpdiff.step`, `log` and `mark`
script      the bodies of those three
recorder    steps, sites and events: every hook's way to the store
warning     warnings and sentences that cannot harm the program
quiet       how a hook looks without disturbing
threads     which threads are followed
identity    a table keyed by live objects
generators  states of random generators, and who drew from them
wrapping    puts functions of the recorder's around others of torch or Triton
watch       the parameters after each optimizer step, for `fpdiff verify`

job/      how a job is started and recorded as one run: the launcher, and what each process is in it
events/   what becomes of an event: its site, what it has read, and the step that it belongs to
modules/  calls of modules: their names, what they were given and returned, and the gradients of it
state/    what a step starts from, and what optimizers make of it
ops/      operators, collectives and kernels: what each of them read and wrote
"""
