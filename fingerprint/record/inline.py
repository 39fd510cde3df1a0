"""Recording from code: `with fpdiff.record(path):`."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fpdiff.fingerprint.record import current, runfolder
from fpdiff.fingerprint.record.arming import arm
from fpdiff.fingerprint.record.process import sibling_rank
from fpdiff.fingerprint.record.settings import Settings


@contextmanager
def recording(settings: Settings, *, force: bool) -> Iterator[None]:
    """Make the run's folder, watch this process while the block runs, put all on disk.

    Raises:
        RecordError: see `runfolder.create`.
    """
    if current.script is not None:
        # The block may stay in a script that is also started under `fpdiff record`.
        warnings.warn(
            f"fpdiff: this process is being recorded already; {settings.out} is not written",
            stacklevel=5,
        )
        yield
        return
    rank = sibling_rank()
    command = [sys.executable, *sys.orig_argv[1:]]
    runfolder.create(settings, command, rank=rank, force=force)
    disarm = arm(settings)
    try:
        yield
    finally:
        disarm()
        if rank is None:
            root = Path(settings.out)
            if not runfolder.remove_if_empty(root):
                runfolder.finish(root, None)
