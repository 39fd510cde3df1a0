"""Where an autograd node comes from: the module call, the line, and what its op was given.

Autograd numbers the nodes that a thread creates. Each module call sees the number of the next node
when it begins and when it ends, and each op that of the node which was created just before it ran.
So a running node leads to where it was created with nothing put into the graph.

Nodes of a device run in a thread of autograd's own, which has numbers of its own for the nodes that
it creates: those of a recomputation, or of a pass that makes a graph. So each thread has a table.
"""

import threading
from array import array
from bisect import bisect_right
from typing import NamedTuple

import torch

from fpdiff.fingerprint.record.modules.scopes import Scope

_KEPT = 1 << 16
"""Beyond so many marks the older half goes: a graph rarely outlives that many module calls."""

_LEAF = (1 << 64) - 1
"""The number of every AccumulateGrad."""

_COPY_SLICES = "torch::autograd::CopySlices"
"""A node that a write to a view adds once its op has run: its number is the next one."""


class _Noted(NamedTuple):
    """The line that a node is from, and whether a backward pass has created it."""

    line: str | None
    by_pass: bool


class _Thread:
    """What is known of the nodes that a thread has created, by their numbers."""

    def __init__(self) -> None:
        """Start with none."""
        self.numbers = array("Q")
        self.scopes: list[Scope | None] = []
        self.arguments: dict[int, list[int]] = {}
        self.last = -1
        self.lines: dict[int, _Noted] = {}
        self.earlier_lines: dict[int, _Noted] = {}

    def forget_earlier(self) -> None:
        """Keep the lines of this step and of the one before: a graph may outlive its step."""
        self.lines, self.earlier_lines = {}, self.lines

    def noted(self, number: int) -> "_Noted | None":
        """Return what was noted of a node, in this step or the one before."""
        return self.lines.get(number) or self.earlier_lines.get(number)


class Nodes:
    """Remembers where nodes were created.

    Attributes:
        of_pass: the table of the thread that began the running backward pass; it has created the
            graph, as a rule.
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self._own = threading.local()
        self._threads: dict[int, _Thread] = {}  # A new thread may take an ended one's number.
        self.of_pass = self.here()

    def here(self) -> _Thread:
        """Return the table of this thread."""
        table: _Thread | None = getattr(self._own, "table", None)
        if table is None:
            table = self._own.table = self._threads[threading.get_ident()] = _Thread()
        return table

    def next_step(self) -> None:
        """Forget the events of the step before."""
        for table in self._tables():
            table.arguments.clear()
            table.forget_earlier()

    # What forward ops were given

    def note_arguments(self, seq: int) -> None:
        """Note the event of what a forward op was given: its node hands that to the backward."""
        self.here().arguments.setdefault(_last_number(), []).append(seq)

    def arguments_of(self, node: torch.autograd.graph.Node) -> list[int]:
        """Return the events, in this step, of what the forward ops of a node were given."""
        number = _number(node)
        return self._creator(number).arguments.get(number, [])

    # Module calls

    def mark(self, scope: Scope | None) -> None:
        """Note that nodes created from now on belong to a call, or to none."""
        number = torch._C._autograd._get_sequence_nr()
        here = self.here()
        if here.numbers and here.numbers[-1] == number:
            here.scopes[-1] = scope
            return
        if len(here.numbers) >= _KEPT:
            del here.numbers[: _KEPT // 2], here.scopes[: _KEPT // 2]
        here.numbers.append(number)
        here.scopes.append(scope)

    def scope_of(self, node: torch.autograd.graph.Node) -> Scope | None:
        """Return the call that created a node, None if it was none that is known."""
        number = _number(node)
        creator = self._creator(number)
        index = bisect_right(creator.numbers, number) - 1
        return creator.scopes[index] if index >= 0 else None

    # Lines

    def is_new(self) -> bool:
        """Return whether a node was created since a line was last noted: it is the running op's."""
        return _last_number() != self.here().last

    def note_line(self, line: str | None, *, by_pass: bool) -> None:
        """Note the line of the op that runs, which the newest node was created for.

        Args:
            line: the line, None if it has none.
            by_pass: the op is part of a backward pass, which makes a graph.
        """
        here = self.here()
        here.last = _last_number()
        if len(here.lines) >= _KEPT:
            here.forget_earlier()
        here.lines[here.last] = _Noted(line, by_pass)

    def line_of(self, node: torch.autograd.graph.Node) -> str | None:
        """Return the line of the op that a node was created for, None if that is not certain."""
        lines = {noted.line for _, noted in self._candidates(_number(node))}
        return lines.pop() if len(lines) == 1 else None

    def _creator(self, number: int) -> _Thread:
        """Return the table of the thread that has created a node, the likelier one of several."""
        if len(self._threads) == 1:
            return self.of_pass
        return next((table for table, _ in self._candidates(number)), self.of_pass)

    def _candidates(self, number: int) -> list[tuple[_Thread, _Noted]]:
        """Return the threads that may have created a node that runs, and what they noted of it.

        That is the one that began the pass. Of the others' nodes, those that a pass has created
        are part of graphs elsewhere; a recomputation's are not.
        """
        tables = [self.of_pass, *(t for t in self._tables() if t is not self.of_pass)]
        known = [(t, noted) for t in tables if (noted := t.noted(number)) is not None]
        return [(t, noted) for t, noted in known if noted.by_pass or t is self.of_pass]

    def _tables(self) -> list[_Thread]:
        return list(self._threads.values())


def accumulated_leaf(node: torch.autograd.graph.Node) -> torch.Tensor | None:
    """Return the parameter that a node accumulates the gradient of, None for other nodes."""
    if node._sequence_nr() != _LEAF:
        return None
    variable: torch.Tensor | None = getattr(node, "variable", None)
    return variable


def _number(node: torch.autograd.graph.Node) -> int:
    """Return a node's number, of one that a write added that of the op's own."""
    return node._sequence_nr() - (node.name() == _COPY_SLICES)


def _last_number() -> int:
    """Return the number of the last node that this thread has created.

    A node is created just before its op runs.
    """
    return torch._C._autograd._get_sequence_nr() - 1
