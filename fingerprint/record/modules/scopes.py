"""The stack of running module calls, per thread.

A Scope outlives its call (gradients refer to it), so it holds no module and no tensor.
"""

import threading
from dataclasses import dataclass, field

from torch import nn

MAX_READS = 64
"""Beyond so many direct inputs an event reads a span instead, which holds them and more."""


@dataclass(slots=True)
class Scope:
    """One call of a module.

    `reads` are the seqs of the events that anything computed in this call so far may have read:
    its arguments, its own parameters and buffers, what it drew, its finished children's outputs.
    """

    path: str
    module_class: str
    call: int
    phase: str
    microbatch: int
    parent: "Scope | None"
    recorded: bool  # in the window of modules
    only_passes: bool  # has no code of its own: an nn.Sequential
    is_opaque: bool = False  # compiled: no module is recorded inside it
    reads: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)  # at rung layer, by it and its callers

    def all_reads(self) -> list[int]:
        """Return `reads`, completed by the callers' where the call's arguments are not recorded.

        That is so outside the window of modules; a root is always recorded.
        """
        reads, scope = self.reads, self
        while not scope.recorded and scope.parent is not None:
            scope = scope.parent
            reads = reads + scope.reads
        return reads


class ScopeStack(threading.local):
    """Each thread's running calls, outermost first."""

    def __init__(self) -> None:
        """Start with nothing running in this thread."""
        self._running: list[tuple[nn.Module, Scope]] = []

    def __len__(self) -> int:
        """Return how many calls are running in this thread."""
        return len(self._running)

    def top(self) -> Scope | None:
        """Return the innermost running call."""
        return self._running[-1][1] if self._running else None

    def top_module(self) -> nn.Module | None:
        """Return the module of the innermost running call."""
        return self._running[-1][0] if self._running else None

    def enter(self, module: nn.Module, scope: Scope) -> None:
        """Begin a call."""
        self._running.append((module, scope))

    def leave(self, module: nn.Module) -> Scope | None:
        """End the call of a module and every call inside it that an exception cut short.

        Returns None for a module whose call was not entered.
        """
        running = self._running
        for index in range(len(running) - 1, -1, -1):
            if running[index][0] is module:
                scope = running[index][1]
                del running[index:]
                return scope
        return None
