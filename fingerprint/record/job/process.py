"""Which rank this process is, and whether it is a process to record at all."""

import atexit
import multiprocessing
import multiprocessing.util
import os
from collections.abc import Callable

import torch

from fpdiff.fingerprint.record.job.launch import launcher_rank


def rank() -> int:
    """Return this process's rank: torch.distributed's, else the launcher's, else 0."""
    found = sibling_rank()
    return 0 if found is None else found


def sibling_rank() -> int | None:
    """Return this process's rank if it is one of several that start alike, else None."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return launcher_rank(os.environ)


def is_helper() -> bool:
    """Return whether this process is a worker of a DataLoader or a pool, which trains nothing."""
    if torch.utils.data.get_worker_info() is not None:
        return True
    is_rank = torch.distributed.is_available() and torch.distributed.is_initialized()
    return multiprocessing.current_process().daemon and not is_rank


def at_end(function: Callable[[], None]) -> None:
    """Call a function when this very process ends in an orderly way, not a fork of it."""
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:
            function()

    atexit.register(end)
    if multiprocessing.parent_process() is not None:
        # A process of multiprocessing leaves without running what atexit holds.
        multiprocessing.util.Finalize(None, end, exitpriority=0)
