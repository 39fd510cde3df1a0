"""Ops between two steps, kept until it is known to which step they belong.

What comes after an optimizer's step belongs to the next step, unless another optimizer's step
follows. Ops alone cannot tell: only a module's call, a backward pass or an optimizer decides.
Until then their events have seqs from FIRST on.
"""

from collections import Counter
from dataclasses import dataclass

import torch

from fpdiff.fingerprint.record.events.sitetable import Point

FIRST = 1 << 48
"""No run has so many events: seqs from here on are provisional."""

OpPlace = tuple[str, str, int, "str | None", "str | None", int]
"""(phase, module, call, op, members, microbatch): within it an op's calls are counted."""


def place_of(point: Point, microbatch: int) -> OpPlace:
    """Return within what a point's op is counted."""
    return point.phase, point.module, point.call, point.op, point.members, microbatch


@dataclass(frozen=True)
class OpEvent:
    """An event of an op; see `OpEvents.emit`."""

    point: Point
    occurrence: int
    microbatch: int
    digest: bytes
    dtype: torch.dtype | str
    shape: torch.Size | tuple[int, ...]
    reads: list[int]
    earlier: list[int]
    value: float | None
    source: str


class Prelude:
    """The events between two steps."""

    def __init__(self) -> None:
        """Start with none."""
        self.events: list[OpEvent] = []
        self.counts: Counter[OpPlace] = Counter()

    def add(self, event: OpEvent) -> int:
        """Keep an event and return its provisional seq."""
        self.events.append(event)
        return FIRST + len(self.events) - 1
