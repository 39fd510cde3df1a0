"""What checks one run alone. Knows nothing of terminals.

certify      the whole way from a run to a certificate
certificate  the answer as plain data
ledger       findings as they come, told once for all ranks and steps that share them
sites        the sites of all ranks under common numbers
rank         what is kept of a rank: how it ended and its step rows
stream       a rank's events, step by step
whole        files, step rows and events agree with one another
presence     every rank of the job is there, with the same steps
collectives  the members of a collective called it alike and got the same
recompute    what activation checkpointing computed again is what it was
replicas     parameters that began equal on several ranks stay equal
unseen       blind spots, and what the settings left out
"""
