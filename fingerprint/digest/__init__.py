"""From the bytes of a tensor to a 128-bit digest. Knows nothing of files or runs.

host        XXH3-128 over the logical row-major bytes of any tensor
mix128/     another digest, which a device computes, and whose parts add up
algorithms  the digests that a run can be recorded with
staging     digests that come back from a device at the end of a step
storages    a table keyed by storages that are alive
cache       each tensor version is digested once
stats       l2, absmax and nonfinite count
"""
