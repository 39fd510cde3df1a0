"""The events of operators, which may run between two steps.

Then it is not known yet to which of them they belong: see `prelude`.
"""

from collections import Counter
from typing import TYPE_CHECKING

import torch

from fpdiff.fingerprint.record.events.prelude import FIRST, OpEvent, OpPlace, Prelude, place_of
from fpdiff.fingerprint.record.events.sitetable import Point

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.ops.call import Call
    from fpdiff.fingerprint.record.recorder import Recorder


class OpEvents:
    """Numbers the events of operators, provisionally between steps.

    Attributes:
        numbers: seqs of the numbers that the program took out of tensors.
        draws: seqs of the last draws, by generator.
        draws_in_call: seqs of the draws since a module last said what it drew from.
    """

    def __init__(self, recorder: "Recorder") -> None:
        """Belong to a recorder."""
        self._recorder = recorder
        self._events = recorder.events
        self.numbers: list[int] = []
        self.draws: dict[object, int] = {}
        self.draws_in_call: list[int] = []
        self._prelude = Prelude()
        self._met_between_steps: set[tuple[Point, int]] = set()
        self._counts: Counter[OpPlace] = Counter()

    def count(self, place: OpPlace) -> int:
        """Return how many times an op was called within a place before, and count this time."""
        counts = self._prelude.counts if self._recorder.between_steps else self._counts
        count = counts[place]
        counts[place] = count + 1
        return count

    def emit(
        self,
        call: "Call",
        point: Point,
        digest: bytes,
        dtype: torch.dtype | str = "",
        shape: torch.Size | tuple[int, ...] = (),
        reads: list[int] | None = None,
        earlier: list[int] | None = None,
        value: float | None = None,
        span: int = 0,
    ) -> int:
        """Append or keep one event of an op and return its seq, which may be provisional.

        Args:
            call: which call of the op it is.
            point: as for `StepEvents.emit`, and so are digest, dtype, shape, reads and value.
            earlier: seqs that it also read if it turns out to belong to the open step.
            span: it also read so many events just before it; none between steps.
        """
        reads, occurrence, microbatch = reads or [], call.occurrence, call.microbatch
        if not self._recorder.between_steps:
            return self._events.emit(
                point, digest, microbatch, dtype, shape, reads, span, value, occurrence
            )
        kept = [seq for seq in reads if seq >= FIRST]
        earlier = [*(earlier or ()), *(seq for seq in reads if seq < FIRST)]
        again = (point, occurrence)
        source = ""
        if again not in self._met_between_steps:
            self._met_between_steps.add(again)
            source = self._recorder.lines.of(point) or ""
        return self._prelude.add(
            OpEvent(
                point, occurrence, microbatch, digest, dtype, shape, kept, earlier, value, source
            )
        )

    def last_seq(self) -> int:
        """Return the seq of the last event, provisional between steps."""
        if self._recorder.between_steps:
            return FIRST + len(self._prelude.events) - 1
        return self._events.next_seq() - 1

    def take_draws(self) -> list[int]:
        """Return the seqs of the draws since last asked."""
        draws, self.draws_in_call = self.draws_in_call, []
        return draws

    # The prelude

    def open_step(self, *, in_window: bool) -> None:
        """Make what ran since the step before the beginning of the step that opens."""
        prelude, self._prelude = self._prelude, Prelude()
        shift = self._events.first_seq - FIRST
        if not in_window:
            prelude = Prelude()
        self._counts = prelude.counts
        for event in prelude.events:
            self._emit_kept(event, event.occurrence, [seq + shift for seq in event.reads])
        self._events.writers.forget(FIRST if in_window else FIRST << 1)
        self._settle(shift)
        self.draws_in_call.clear()

    def join_step(self) -> None:
        """Add the ops since an optimizer's step to its step: another optimizer's has come."""
        prelude, self._prelude = self._prelude, Prelude()
        if not prelude.events:
            return
        shift = self._events.next_seq() - FIRST
        for event in prelude.events:
            reads = [seq + shift for seq in event.reads]
            occurrence = event.occurrence + self._counts[place_of(event.point, event.microbatch)]
            self._emit_kept(event, occurrence, [*event.earlier, *reads])
        self._counts.update(prelude.counts)
        self._settle(shift, keep=True)

    def _emit_kept(self, event: OpEvent, occurrence: int, reads: list[int]) -> None:
        self._events.emit(
            event.point,
            event.digest,
            event.microbatch,
            event.dtype,
            event.shape,
            reads,
            value=event.value,
            occurrence=occurrence,
            source=event.source,
        )

    def _settle(self, shift: int, *, keep: bool = False) -> None:
        """Give what refers to events between steps their final seqs."""
        self._events.writers.renumber(FIRST, lambda seq: seq + shift)
        self.numbers = [s + shift if s >= FIRST else s for s in self.numbers if keep or s >= FIRST]
        self.draws = {
            generator: seq + shift if seq >= FIRST else seq
            for generator, seq in self.draws.items()
            if keep or seq >= FIRST
        }
