"""Which module call an autograd node comes from.

Autograd numbers the nodes that a thread creates, and each module call sees the number of the next
node when it begins and when it ends. So a running node leads to the call that created it with
nothing put into the graph.
"""

from array import array
from bisect import bisect_right

import torch

from fpdiff.fingerprint.record.scopes import Scope

_KEPT = 1 << 16
"""Beyond so many marks the older half goes: a graph rarely outlives that many module calls."""

_LEAF = (1 << 64) - 1
"""The number of every AccumulateGrad."""


class NodeScopes:
    """Remembers from which node on a call was the innermost one."""

    def __init__(self) -> None:
        """Start with no call known."""
        self._numbers = array("Q")
        self._scopes: list[Scope | None] = []
        self._arguments: dict[int, list[int]] = {}

    def note_arguments(self, seq: int) -> None:
        """Note the event of what a forward op was given: its node hands that to the backward.

        A node is created just before its op runs.
        """
        number = torch._C._autograd._get_sequence_nr() - 1
        self._arguments.setdefault(number, []).append(seq)

    def arguments_of(self, node: torch.autograd.graph.Node) -> list[int]:
        """Return the events, in this step, of what the forward ops of a node were given."""
        return self._arguments.get(node._sequence_nr(), [])

    def next_step(self) -> None:
        """Forget the events of the step before."""
        self._arguments.clear()

    def mark(self, scope: Scope | None) -> None:
        """Note that nodes created from now on belong to a call, or to none."""
        number = torch._C._autograd._get_sequence_nr()
        if self._numbers and self._numbers[-1] == number:
            self._scopes[-1] = scope
            return
        if len(self._numbers) >= _KEPT:
            del self._numbers[: _KEPT // 2], self._scopes[: _KEPT // 2]
        self._numbers.append(number)
        self._scopes.append(scope)

    def scope_of(self, node: torch.autograd.graph.Node) -> Scope | None:
        """Return the call that created a node, None if it was none that is known."""
        index = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._scopes[index] if index >= 0 else None


def accumulated_leaf(node: torch.autograd.graph.Node) -> torch.Tensor | None:
    """Return the parameter that a node accumulates the gradient of, None for other nodes."""
    if node._sequence_nr() != _LEAF:
        return None
    variable: torch.Tensor | None = getattr(node, "variable", None)
    return variable
