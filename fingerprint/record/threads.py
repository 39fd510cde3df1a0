"""Which threads are followed: the one that ran the first module, and autograd's that work for it.

A program may train, evaluate or compile in several threads at once. One record holds the events of
one of them: what the others do has no place in its order.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Threads:
    """Knows the training thread, and the backward passes that it has begun."""

    def __init__(self) -> None:
        """Follow no thread yet, which is to say any."""
        self._training: int | None = None
        self._lock = threading.Lock()
        self._num_passes = 0
        self._elsewhere = threading.local()

    def take(self) -> bool:
        """Follow this thread, unless another was quicker; return whether it is followed."""
        with self._lock:
            if self._training is None:
                self._training = threading.get_ident()
        return self._training == threading.get_ident()

    def are_followed(self) -> bool:
        """Return whether what runs in this thread is recorded."""
        if self._training is None or self._training == threading.get_ident():
            return True
        # The autograd engine runs hooks in threads of its own while the program waits for it. On a
        # device they work for all passes: of two at once it is not known which a hook belongs to.
        works_for_pass = torch._C._current_graph_task_id() != -1
        return works_for_pass and self._num_passes > 0 and not self._has_pass_of_its_own()

    @contextmanager
    def passing(self) -> Iterator[bool]:
        """Run a backward pass, which this thread begins; yields whether it is followed."""
        followed = self.are_followed()
        if followed:
            self._num_passes += 1
        else:
            self._elsewhere.num_passes = self._num_passes_elsewhere() + 1
        try:
            yield followed
        finally:
            if followed:
                self._num_passes -= 1
            else:
                self._elsewhere.num_passes -= 1

    def _has_pass_of_its_own(self) -> bool:
        return self._num_passes_elsewhere() > 0

    def _num_passes_elsewhere(self) -> int:
        found: int = getattr(self._elsewhere, "num_passes", 0)
        return found
