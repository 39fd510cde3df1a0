"""Recording from code: `with fpdiff.record(path):`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch  # noqa: F401  # Before `arming`, which imports torch: its import may arm this process.

from fpdiff.fingerprint.record import current
from fpdiff.fingerprint.record.arming import arm
from fpdiff.fingerprint.record.job import runfolder
from fpdiff.fingerprint.record.job.process import sibling_rank
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.record.warning import warn


@contextmanager
def recording(settings: Settings, *, force: bool) -> Iterator[None]:
    """Make the run's folder, watch this process while the block runs, put all on disk.

    Raises:
        RecordError: see `runfolder.create`.
    """
    if current.script is not None:
        # The block may stay in a script that is also started under `fpdiff record`.
        warn(
            f"this process is being recorded already; {settings.out} is not written",
            stacklevel=5,
        )
        yield
        return
    settings = replace(settings, out=str(runfolder.of_this_attempt(Path(settings.out))))
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
            try:
                if not runfolder.remove_if_empty(root):
                    runfolder.finish(root, None)
            except OSError as error:  # Removed, or on a full disk: no matter of the program's.
                warn(f"cannot note the end of {root}: {error}")
