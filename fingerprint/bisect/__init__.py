"""What compares two runs. Knows nothing of torch or terminals.

compare    the whole way from two runs to a verdict
verdict    the answer as plain data
preflight  what the two runs have in common
tier       step digests: which step differs first, what it does later
lens       compares what both runs recorded when their windows differ
align      the events of one step of both runs, side by side
origins    which mismatched events no mismatched event explains
attribute  what kind of difference an origin is, and who only received one
shift      the same batch at another step
advice     hints, and the command that narrows further
"""
