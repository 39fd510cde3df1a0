"""How a job is started and recorded as one run: the launcher, and what each process is in it.

launch       what launchers put into the environment
launcher     starts a command with the recorder in every Python process below it
remote       the same for a run that goes to object storage
environment  versions, flags, devices, process groups
switches     flags that the program may switch in its middle
process      which rank this process is
runfolder    creates the run's folder and run.json
"""
