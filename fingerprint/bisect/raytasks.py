"""The work on many ranks as tasks of a Ray cluster; a task whose worker dies is done again."""

import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

from fpdiff.fingerprint.bisect.parallel import Engine
from fpdiff.store.errors import CompareError

T = TypeVar("T")
R = TypeVar("R")

_TASKS_PER_CPU = 4
"""So many are waiting for each processor: what one takes longer, others make up for."""

_RETRIES = 3

_KNOCK_SECONDS = 10


@contextmanager
def ray_engine(address: str = "") -> Iterator[Engine]:
    """Yield what does work in a Ray cluster.

    Its workers need this version of fpdiff, and the runs under the same paths.

    Args:
        address: of a cluster; if empty, one of this machine's processors is started and stopped
            again. A process that is connected to a cluster already goes on using that.

    Raises:
        CompareError: Ray is not installed, or the cluster is not there.
    """
    # Before the import, which reads it: nothing is reported to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as missing:
        raise CompareError(
            "--engine ray needs Ray, which is not installed: pip install 'fpdiff[ray]'"
        ) from missing
    if ray.is_initialized():
        with redirect_stdout(sys.stderr):
            yield _engine(ray)
        return
    if address:
        _knock(address)
    try:
        ray.init(
            address=address or None,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"the Ray cluster at {address}" if address else "a Ray cluster"
        raise CompareError(f"{where} cannot be reached: {error}") from error
    try:
        with redirect_stdout(sys.stderr):  # Ray prints there what happens to its workers.
            yield _engine(ray)
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Find out at once if nobody is there; Ray itself tries for minutes."""
    match = re.fullmatch(r"\[?([^/]+?)\]?:(\d+)", address)
    if match is None:  # `auto`, or a client's address: Ray knows what that means.
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=_KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise CompareError(
            f"the Ray cluster at {address} cannot be reached: {error}; give --address its HOST:PORT"
        ) from error


def _engine(ray: Any) -> Engine:
    @ray.remote(max_retries=_RETRIES)  # type: ignore[untyped-decorator]
    def task(work: Callable[[T], R], items: list[T]) -> list[R]:
        return [work(item) for item in items]

    def run(
        work: Callable[[T], R], items: Iterable[T], done: Callable[[], None] | None = None, /
    ) -> list[R]:
        everything = list(items)
        size = -(-len(everything) // (_TASKS_PER_CPU * int(ray.cluster_resources().get("CPU", 1))))
        shared = ray.put(work)
        parts = [everything[i : i + size] for i in range(0, len(everything), size or 1)]
        tasks = [task.remote(shared, part) for part in parts]
        waiting = list(tasks)
        while waiting:
            (ready, *_), waiting = ray.wait(waiting)
            for _ in parts[tasks.index(ready)]:
                if done is not None:
                    done()
        return [result for one in tasks for result in _result(ray, one)]

    return run


def _result(ray: Any, task: Any) -> Any:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.WorkerCrashedError as error:
        raise CompareError(
            f"a worker of the Ray cluster died {_RETRIES + 1} times over the same ranks: give its"
            " node more memory, or compare without --engine ray"
        ) from error
