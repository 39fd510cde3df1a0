"""The same work on many ranks at once, in threads: reading and decoding leave Python's lock.

`raytasks` does it in the processes of a Ray cluster.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Does the same work on many ranks at once."""

    def __call__(
        self, work: Callable[[T], R], items: Iterable[T], done: Callable[[], None] | None = None, /
    ) -> list[R]:
        """Return the result of each item, in their order.

        Args:
            work: depends on its argument and nothing else; it, the items and the results can be
                pickled.
            items: what it is called with.
            done: called after each result, in the calling thread.
        """


MAX_THREADS = 8
"""More would wait for one another: what is done between two reads is Python."""


def in_parallel(
    work: Callable[[T], R], items: Iterable[T], done: Callable[[], None] | None = None
) -> list[R]:
    """Return the result of each item, see `Engine`; `work` is called in several threads at once."""
    pool = ThreadPoolExecutor(min(MAX_THREADS, _num_processors()))
    results = []
    try:
        for result in pool.map(work, items):
            results.append(result)
            if done is not None:
                done()
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
