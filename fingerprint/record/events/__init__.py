"""What becomes of an event: its site, what it has read, and the step that it belongs to.

sitetable   numbers of sites
source      the line of the program that is running
lines       the line that an event is told to be at
steprow     the digests of a closed step
stepevents  the events of the open step, in order
opevents    the events of operators, which may run between two steps
stepwriter  puts steps on disk in order, each when its digests have arrived
dataflow    which event recorded a tensor last
prelude     operators between two steps, until it is known to which they belong
"""
