"""One call of an operator, between what it reads and what it makes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from fpdiff.fingerprint.digest.host import PlainView
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.ops.schema import OpSchema


@dataclass(slots=True)
class Call:
    """One call of an operator.

    Attributes:
        schema: of the operator.
        point: a point at this call, to be given kind and slot.
        microbatch: the microbatch.
        occurrence: nth call of the operator at this place.
        reads: seqs that everything it makes has read.
        by_element: seqs that only the nth elements have read, for ops on lists.
        written: (slot, index in a list, tensor) of the arguments that it writes.
        place: where the first argument lies; a view keeps what chose that place.
        mark: see `DeviceKernels.mark`, 0 if it has none.
    """

    schema: OpSchema
    point: Point
    microbatch: int
    occurrence: int
    reads: list[int] = field(default_factory=list)
    by_element: dict[int, list[int]] = field(default_factory=dict)
    written: list[tuple[str, int | None, torch.Tensor]] = field(default_factory=list)
    place: PlainView | None = None
    mark: int = 0

    def at(self, kind: str, slot: str) -> Point:
        """Return the point of one of the call's events."""
        phase, _, module, module_class, call, _, op, members = self.point
        return Point(phase, kind, module, module_class, call, slot, op, members)

    def reads_of(self, index: int | None) -> list[int]:
        """Return what the nth element of what it makes has read, in the order of the arguments."""
        if not self.by_element:
            return list(dict.fromkeys(self.reads)) if len(self.reads) > 1 else self.reads.copy()
        if index is None:
            return list(dict.fromkeys(chain(self.reads, *self.by_element.values())))
        return list(dict.fromkeys(chain(self.reads, self.by_element.get(index, ()))))


class RunningCalls(threading.local):
    """Each thread's operators that run, for kernels that are launched inside one."""

    def __init__(self) -> None:
        """Start with nothing running in this thread."""
        self._calls: list[Call] = []

    def innermost(self) -> Call | None:
        """Return the operator that runs, if any."""
        return self._calls[-1] if self._calls else None

    def run(self, call: Call, operator: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an operator."""
        self._calls.append(call)
        try:
            return operator(*args, **kwargs)
        finally:
            self._calls.pop()
