"""The events of the open step, in order, and their way to the store."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from fpdiff.fingerprint.digest.algorithms import ALGORITHMS
from fpdiff.fingerprint.digest.cache import SMALL_BYTES, DigestCache
from fpdiff.fingerprint.digest.host import (
    PlainView,
    Undigestible,
    is_number,
    look,
    scalar,
    shape_of,
)
from fpdiff.fingerprint.digest.staging import Staging, digest_of_number
from fpdiff.fingerprint.digest.stats import statistics
from fpdiff.fingerprint.record.events.dataflow import Producers
from fpdiff.fingerprint.record.events.lines import Lines
from fpdiff.fingerprint.record.events.prelude import FIRST
from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.fingerprint.record.events.stepwriter import StepWriter
from fpdiff.fingerprint.record.ops.devicekernels import DeviceKernels
from fpdiff.fingerprint.record.ops.writers import HOLE, Writers
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.record.state.standing import Standing
from fpdiff.store.columns import EventColumns
from fpdiff.store.writer import RankWriter

FLUSH_EVENTS = 1 << 16
"""An open step is written to the journal each time it has so many new events."""


class StepEvents:
    """Numbers events, digests their tensors and hands them on.

    Attributes:
        first_seq: of the open step.
        microbatch: that what runs now belongs to.
        cache: the digests of tensors.
        producers: which event recorded a tensor last.
        writers: which events wrote what memory; with ops and collectives only.
        device_kernels: which kernels ran for the events; at rung kernel.
        blind_spots: what could not be recorded, counted by reason.
    """

    def __init__(self, settings: Settings) -> None:
        """Get ready; see `begin`."""
        self.first_seq = 0
        self.microbatch = 0
        # With --rehash digests are compared as soon as they are taken.
        self._staging = Staging() if settings.digest == "mix128" and not settings.rehash else None
        self.cache = DigestCache(ALGORITHMS[settings.digest], self._staging)
        self.producers = Producers()
        self.writers = Writers()
        self.blind_spots: Counter[str] = Counter()
        self.device_kernels = DeviceKernels(self.blind_spots)
        self._ops = settings.ops
        self._stats = settings.stats
        self._rehash = settings.rehash
        # Elsewhere more is done for each tensor than `emit_standing` does.
        self._knows_standing = not (self._ops or self._stats)
        self._step = settings.first_step
        self._occurrences: dict[tuple[Point, int], int] = {}
        self._columns = EventColumns(self._step, 0)
        self._is_flushed = False
        self._sites: SiteTable
        self._steps: StepWriter

    def begin(self, writer: RankWriter, lines: Lines) -> None:
        """Begin to write.

        Args:
            writer: of this rank.
            lines: tells an event's line of the program.
        """
        self._sites = SiteTable(writer.add_site, lines.of)
        self._steps = StepWriter(writer, self._sites, self._staging)

    # Steps

    def open_step(self, number: int) -> None:
        """Begin a step."""
        self._step = number
        self.first_seq = self.next_seq()
        self._columns = EventColumns(number, self.first_seq)
        self._steps.open_step(number, self.first_seq)
        self._is_flushed = False
        self._occurrences = {}
        self.microbatch = 0
        self.producers.clear()
        self.cache.sweep()

    def flush(self, *, close: bool, ended: bool = True) -> None:
        """Put what there is on disk.

        Args:
            close: with the step's row, which may be written again.
            ended: the program has ended the step, not the recording.

        Raises:
            OSError: see `RankWriter`.
        """
        if not len(self._columns) and self._is_flushed:
            return
        if not close and self.device_kernels.is_on:
            return  # Which kernels ran is known at the step's end.
        for seq, names in self.device_kernels.take().items():
            if seq >= self._columns.first_seq:
                self._columns.kernels[seq - self._columns.first_seq] = names
        self._is_flushed = close
        self._steps.write(self._columns, close=close, ended=ended)
        self._columns = EventColumns(self._step, self.next_seq())

    def close_step(self, *, ended: bool) -> None:
        """End the open step and put it on disk; see `flush`."""
        self.flush(close=True, ended=ended)
        self._steps.end_step(ended=ended)

    def close(self) -> None:
        """Put everything on disk.

        Raises:
            OSError: see `RankWriter`.
        """
        self._steps.close()

    def together(self) -> AbstractContextManager[None]:
        """Digest a device's tensors in a block at once; nothing writes to them within it."""
        return nullcontext() if self._staging is None else self._staging.together()

    # What there is

    def next_seq(self) -> int:
        """Return the seq that the next event will get."""
        return self._columns.first_seq + len(self._columns)

    def num_step_events(self) -> int:
        """Return how many events the open step has: a span that reads them all."""
        return self.next_seq() - self.first_seq

    def digest_of(self, seq: int) -> bytes | None:
        """Return the digest of a recent event, None once it has been flushed."""
        index = seq - self._columns.first_seq
        return bytes(self._columns.digests[16 * index : 16 * index + 16]) if index >= 0 else None

    def producer_of(self, tensor: torch.Tensor, view: PlainView | None) -> tuple[int | None, bool]:
        """Return the event that a tensor comes from, see `Producers.find`.

        Where ops are not recorded, that may also be what a collective left before the step began.
        """
        found = self.producers.find(tensor, view)
        if found[0] is None and view is not None and not self._ops:
            seq = self.writers.last_seq(view)
            if seq is not None and seq < FIRST:
                return seq, False
        return found

    def emit(
        self,
        point: Point,
        digest: bytes,
        microbatch: int | None = None,
        dtype: torch.dtype | str = "",
        shape: torch.Size | tuple[int, ...] = (),
        reads: Sequence[int] = (),
        span: int = 0,
        value: float | None = None,
        occurrence: int | None = None,
        source: str | None = None,
    ) -> int:
        """Append one event to the open step and return its seq.

        Args:
            point: where in the program.
            digest: 16 bytes.
            microbatch: the current one by default, except for what belongs to all of them.
            dtype: of the tensor; `shape` too.
            reads: seqs of the events that it read.
            span: it also read so many events just before it.
            value: the number itself, for scalars.
            occurrence: nth event of this point in the step; counted if not given.
            source: see `SiteTable.number`.
        """
        if microbatch is None:
            microbatch = 0 if point.phase == "optimizer" else self.microbatch
        if occurrence is None:
            occurrences = self._occurrences
            again = (point, microbatch)
            occurrence = occurrences.get(again, 0)
            occurrences[again] = occurrence + 1
        site = self._sites.number((point, occurrence, dtype, shape), source)
        if value is not None:
            self._columns.values[len(self._columns)] = value
        return self._append(microbatch, site, digest, reads, span)

    def _append(
        self, microbatch: int, site: int, digest: bytes, reads: Sequence[int], span: int
    ) -> int:
        columns = self._columns
        seq = columns.append(microbatch, site, digest, reads, span)
        if len(columns) >= FLUSH_EVENTS:
            self.flush(close=False)
        return seq

    def emit_tensor(
        self,
        point: Point,
        tensor: torch.Tensor,
        view: PlainView | None = None,
        *,
        trust: bool = True,
        value: bool = False,
        follow: bool = True,
        remember: bool = True,
        microbatch: int | None = None,
        reads: Sequence[int] = (),
        span: int = 0,
    ) -> int | None:
        """Append the event of a tensor.

        Args:
            point: as for `emit`, and so are microbatch, reads and span.
            tensor: any tensor.
            view: what `host.look` returns for it, where that is at hand.
            trust: a digest taken at this version of the tensor may be used again.
            value: record a one-element tensor's number beside its digest.
            follow: who is given the tensor later is to read this event.
            remember: the tensor's digest may be needed again.

        Returns:
            The event's seq, or None (and a blind spot) if the tensor's bytes cannot be read.
        """
        if view is None:
            view = look(tensor)
        memory, is_known = None, True
        known: bytes | None = None
        if self._ops and (memory := _memory_of(tensor, view)) is not None:
            sources = self.writers.sources(memory)
            is_known = sources.known
            # At this rung it is known which events a tensor comes from.
            if settled := [seq for seq in sources.seqs if seq < FIRST]:
                reads, span = settled, 0
            if sources.has_hole and settled and not point.op:
                hole = point._replace(kind="uninitialised")
                seq = self.emit(hole, HOLE, microbatch, tensor.dtype, tensor.shape, reads, span)
                self.writers.put(memory, seq, is_hole=True)
                reads = [*reads, seq]
            # A small tensor is digested anew, which shows writes that no op made.
            if trust and memory.extent_bytes > SMALL_BYTES and not self._rehash:
                known = self.writers.digest_of(memory)
        try:
            digest = known or self.cache.digest(tensor, view, trust=trust, remember=remember)
        except Undigestible as reason:
            self.blind_spots[str(reason)] += 1
            return None
        if self._stats:
            self.note_stats(tensor)
        number = self._number(tensor) if value else None
        shape = tensor.shape if view is not None else shape_of(tensor)
        seq = self.emit(point, digest, microbatch, tensor.dtype, shape, reads, span, number)
        if memory is not None and (not is_known or self.writers.contradicts(memory, digest)):
            self.writers.put(memory, seq, digest)
        if follow:
            self.producers.put(tensor, view, seq)
        return seq

    def emit_number(self, point: Point, number: float | torch.Tensor) -> None:
        """Append the event of a number of the program's own, or of a tensor that holds one."""
        if isinstance(number, torch.Tensor):
            if (late := self._late(number)) is not None:
                self.emit(point, late)
                return
            known = scalar(number)
            if known is None:
                self.blind_spots["graph capture"] += 1
                return
            number = known
        self.emit(point, digest_of_number(number), value=number)

    def _number(self, tensor: torch.Tensor) -> float | None:
        """Return the number that the next event's tensor holds; None if it comes later."""
        if not is_number(tensor) or self._late(tensor) is not None:
            return None
        return scalar(tensor)

    def _late(self, tensor: torch.Tensor) -> bytes | None:
        """Let the number of the next event come later, if it can; return what stands for it."""
        if self._staging is None or not self._staging.takes(tensor):
            return None
        late = self._staging.number(tensor)
        self._columns.late_values[len(self._columns)] = late
        return self._staging.placeholder(late)

    def note_stats(self, tensor: torch.Tensor) -> None:
        """Note the statistics of the next event's tensor, if there are any."""
        if (row := statistics(tensor)) is not None:
            self._columns.stats[len(self._columns)] = row

    def emit_standing(
        self,
        point: Point,
        standing: Standing,
        tensor: torch.Tensor,
        *,
        trust: bool,
        follow: bool = False,
        reads: Sequence[int] = (),
        span: int = 0,
    ) -> int | None:
        """Append the event of a tensor of the state, as `emit_tensor` does, and faster.

        Args:
            point: as for `emit_tensor`, and so are the others.
            standing: what is known of this tensor.
        """
        microbatch = 0 if point.phase == "optimizer" else self.microbatch
        again = (point, microbatch)
        if self._knows_standing and again not in self._occurrences:
            known = standing.site(tensor, point.phase)
            if known is not None:
                self._occurrences[again] = 1
                digest = standing.digest(tensor, self.cache, trust=trust)
                seq = self._append(microbatch, known, digest, reads, span)
                if follow:
                    self.producers.put(tensor, look(tensor), seq)
                return seq
        new = self.emit_tensor(
            point, tensor, trust=trust, follow=follow, microbatch=microbatch, reads=reads, span=span
        )
        if self._knows_standing and new is not None and self._occurrences[again] == 1:
            site = self._sites.number((point, 0, tensor.dtype, tensor.shape))
            standing.learn(tensor, point.phase, site)
        return new


def _memory_of(tensor: torch.Tensor, view: PlainView | None) -> PlainView | None:
    """Return where the bytes lie that ops work on: of a distributed tensor, its local shard's."""
    if view is None and isinstance(local := getattr(tensor, "_local_tensor", None), torch.Tensor):
        view = look(local)
    return view if view is not None and view.extent_bytes else None
