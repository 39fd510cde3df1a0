"""What lies on disk. Knows nothing of torch or terminals.

schema   the tables and the format's version
writer   the recording side: events to journal to segments
upload   a run's way to object storage
files    how files are made visible whole
bucket   a folder on object storage, and its errors
objects  a run on object storage as readers see it
places   folders and object storage alike
run      the reading side: `Run.open`
columns  events as they come, and the Arrow batch that they become
parquet  a segment's Parquet files, read with checksums
journal  the segment that is not Parquet yet
events   what must hold between events, sites and steps
checks   what must hold for any file, and how errors name it
compact  the small tables of all ranks in one file each, read
compacting  ... and written
summary  a run in one object
views    DuckDB views over one or several runs
verify   what is checked before DuckDB reads
progress  how long work says how far it is
errors   the exception tree
"""
