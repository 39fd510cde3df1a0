"""The exception tree that users of fpdiff may catch.

FpdiffError
├── StoreError        a run, or a file in it, cannot be read or written
├── BucketError       object storage refuses or cannot be reached; nothing is known of the run
├── QueryError        an SQL statement was refused or failed
├── CompareError      two runs cannot be compared
└── RecordError       a recording cannot be set up
"""


class FpdiffError(Exception):
    """Base of every error that fpdiff raises on purpose; its text is one sentence for the user."""


class StoreError(FpdiffError, OSError):
    """A run, or a file in it, cannot be read or written."""

    def __str__(self) -> str:
        """Return the sentence; OSError would show a tuple when it has several arguments."""
        return str(self.args[0]) if self.args else ""


class BucketError(FpdiffError):
    """Object storage refuses or cannot be reached, which says nothing about a run there."""


class QueryError(FpdiffError, ValueError):
    """An SQL statement was refused or failed."""


class CompareError(FpdiffError, ValueError):
    """Two runs cannot be compared."""


class RecordError(FpdiffError, ValueError):
    """A recording cannot be set up."""
