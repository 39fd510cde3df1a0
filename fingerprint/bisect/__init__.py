"""What compares two runs. Knows nothing of torch or terminals.

compare       the whole way from two runs to a verdict
verdict       the answer as plain data
preflight     what the two runs have in common
switches      what differs of what a program switched in its middle
continuation  which step of a run a resumed one begins with
tier          step digests: which step differs first, what it does later
differences   the steps of a rank that differ, as arrays
lens          compares what both runs recorded when their windows differ
arm           one run's events of a step, as arrays
align         the events of one step of both runs, side by side
calls         which calls of operators are the same ones, where one run made more
microbatches  those that one run has in front of those that both have
origins       which mismatched events no mismatched event explains
following     what follows from a difference that it has not read
roots         whether another model is the root in the other run
findings      what a rank's first differing step holds, in little
meetings      collectives and messages, known alike on all ranks
reach         what an origin led to in its step
count         every event that differs, over all steps
parallel      the same work on many ranks at once, in threads
raytasks      the same as tasks of a Ray cluster
attribute     which findings are origins and which were received from other ranks
senders       ranks whose differences count on other ranks alone
classify      what kind of difference an origin is
describe      an origin in full
evidence      what else was seen that bears on it
alike         which origins one cause may have made
shift         the same batch at another step
metrics       the loss and the logged numbers that differ
wording       numbers, ranks and steps as sentences name them
advice        hints, and the command that narrows further
"""
