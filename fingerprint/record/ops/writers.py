"""Which events wrote the memory that an op reads, at rung op.

Every write that goes through torch's dispatcher is seen there, so a storage's bytes are known by
the events that wrote them: an entry per write, in program order, each over a range of bytes.
A tensor reads the events whose ranges overlap its own. Bytes that an `empty` made and nothing has
written since are known to be nobody's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from fpdiff.fingerprint.digest.host import PlainView, digest_bytes
from fpdiff.fingerprint.digest.storages import StorageTable

Where = tuple[object, ...]
Ranges = Sequence[tuple[int, int]]
"""Half-open ranges of bytes."""

HOLE = digest_bytes(b"memory that no op has written")

_NO_VIEWS: dict[Where, int] = {}
"""Shared by all storages that have none; never written."""


class Write(NamedTuple):
    """A range of bytes of a storage, and the event that wrote it.

    `digest` is that of exactly these bytes where they are a row-major tensor on the host, else
    None. A write is `dense` if it left no byte of its range as it was.
    """

    start: int
    end: int
    seq: int
    digest: bytes | None
    dense: bool


@dataclass(frozen=True)
class Flight:
    """A collective's output that the program may not have waited for yet.

    It holds no tensor: one of its place in the storage is made when it is read.

    Attributes:
        start: first byte; `end` the one after the last.
        reads: events of what the ranks' own parts in it were.
        land: given a tensor over the place and `reads`, records the event and puts the write.
        dtype, offset, size, stride: the place, in elements.
        by_copy: the program's wait copies the output there with an op.
    """

    start: int
    end: int
    reads: list[int]
    land: Callable[[torch.Tensor, list[int]], None]
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    by_copy: bool = False


@dataclass(slots=True)
class _Memory:
    """What is known of one storage; most have one write and nothing else."""

    writes: list[Write] = field(default_factory=list)
    holes: Ranges = ()
    views: dict[Where, int] = field(default_factory=lambda: _NO_VIEWS)  # by place, who chose it
    flights: Sequence[Flight] = ()

    def add(self, write: Write, *, is_hole: bool = False) -> None:
        """Add a write; those of which it leaves nothing go."""
        if write.dense and self.writes:
            self.writes = [w for w in self.writes if w.start < write.start or write.end < w.end]
        self.writes.append(write)
        if self.holes and not is_hole:
            self.holes = _without(self.holes, write.start, write.end)

    def renumber(self, change: Callable[[int], int]) -> None:
        """Give every event another number."""
        self.writes = [w._replace(seq=change(w.seq)) for w in self.writes]
        if self.views:
            self.views = {where: change(seq) for where, seq in self.views.items()}
        if self.flights:
            self.flights = [replace(f, reads=[change(s) for s in f.reads]) for f in self.flights]


class Sources(NamedTuple):
    """What a tensor read.

    `seqs` are events, in program order; `known` says that they account for all of its bytes;
    `has_hole` that some of its bytes nobody has written.
    """

    seqs: list[int]
    known: bool
    has_hole: bool


_NONE = Sources([], False, False)


class Writers:
    """The writes of the open step, by storage."""

    def __init__(self) -> None:
        """Start with nothing written."""
        self._storages: StorageTable[_Memory] = StorageTable()

    def sources(self, view: PlainView, first: int = 0) -> Sources:
        """Return the events that wrote a tensor's bytes, and who chose the place it looks at.

        Events before `first` do not count.
        """
        memory = self._storages.get(view.storage)
        if memory is None:
            return _NONE
        start, end = view.start_byte, view.end_byte
        if memory.flights:
            self._land(memory, view.storage, start, end)
        writes = memory.writes
        if len(writes) == 1 and not memory.views and not memory.holes:  # As it mostly is.
            (write,) = writes
            if write.start <= start and end <= write.end and write.seq >= first:
                return Sources([write.seq], True, False)
        seqs = []
        gaps: Ranges = [(start, end)]
        for write in writes:
            if write.start < end and start < write.end and write.seq >= first:
                seqs.append(write.seq)
                gaps = _without(gaps, write.start, write.end)
        if memory.views and memory.views.get(view.where, -1) >= first:
            seqs.append(memory.views[view.where])
        has_hole = any(a < end and start < b for a, b in memory.holes)
        return Sources(seqs, not gaps, has_hole)

    def put(
        self, view: PlainView, seq: int, digest: bytes | None = None, *, is_hole: bool = False
    ) -> None:
        """Note that event `seq` is the tensor as it is now.

        Args:
            view: of the tensor.
            seq: of the event.
            digest: of the tensor.
            is_hole: the event says that nobody wrote it.
        """
        memory = self._memory(view.storage)
        start, end = view.start_byte, view.end_byte
        if not (view.is_row_major and view.is_on_host):
            digest = None
        memory.add(Write(start, end, seq, digest, view.is_dense), is_hole=is_hole)

    def allocate(self, view: PlainView) -> None:
        """Note that a tensor's memory is new and nobody's."""
        memory = self._memory(view.storage)
        memory.writes = []
        memory.holes = [(0, view.storage.nbytes())]

    def drop(self, view: PlainView) -> None:
        """Forget the writes to a tensor's storage: something unknown writes there."""
        memory = self._storages.get(view.storage)
        if memory is not None:
            memory.writes = []
            memory.holes = _without(memory.holes, view.start_byte, view.end_byte)

    def choose(self, view: PlainView, seq: int) -> None:
        """Note that event `seq` says which part of its storage a view looks at."""
        memory = self._memory(view.storage)
        if not memory.views:
            memory.views = {}
        memory.views[view.where] = seq

    def chosen(self, view: PlainView) -> int | None:
        """Return the event that says which part of its storage a view looks at."""
        memory = self._storages.get(view.storage)
        return None if memory is None else memory.views.get(view.where)

    def launch(self, view: PlainView, flight: Flight) -> None:
        """Note that a collective is going to write there."""
        memory = self._memory(view.storage)
        memory.holes = _without(memory.holes, view.start_byte, view.end_byte)
        memory.flights = [*memory.flights, flight]

    def digest_of(self, view: PlainView) -> bytes | None:
        """Return a tensor's digest, if the last write there was of just this tensor."""
        memory = self._storages.get(view.storage)
        if memory is None or not memory.writes or not view.is_row_major:
            return None
        last = memory.writes[-1]
        return last.digest if (last.start, last.end) == (view.start_byte, view.end_byte) else None

    def has_views(self, storage: torch.UntypedStorage) -> bool:
        """Return whether some view of a storage was chosen by an event."""
        memory = self._storages.get(storage)
        return memory is not None and bool(memory.views)

    def contradicts(self, view: PlainView, digest: bytes) -> bool:
        """Return whether a tensor's digest is not the one that its last write left there."""
        memory = self._storages.get(view.storage)
        if memory is None or not memory.writes:
            return False
        last = memory.writes[-1]
        return (last.start, last.end) == (view.start_byte, view.end_byte) and last.digest not in (
            None,
            digest,
        )

    def rewritten(self, view: PlainView, digest: Callable[[int, int], bytes]) -> bool:
        """Return whether bytes that a tensor reads are no longer what their event recorded.

        Args:
            view: of the tensor.
            digest: digests `end - start` bytes of the storage's memory, from byte `start` on.
        """
        memory = self._storages.get(view.storage)
        if memory is None:
            return False
        start, end = view.start_byte, view.end_byte
        size = view.storage.nbytes()
        writes = [w for w in memory.writes if w.start < end and start < w.end]
        latest = [
            w for i, w in enumerate(writes) if not any(_overlap(w, v) for v in writes[i + 1 :])
        ]
        return any(
            w.digest is not None and w.end <= size and digest(w.start, w.end) != w.digest
            for w in latest
        )

    def last_seq(self, view: PlainView) -> int | None:
        """Return the last event that wrote any of a tensor's bytes, as far as is known."""
        memory = self._storages.get(view.storage)
        if memory is None:
            return None
        start, end = view.start_byte, view.end_byte
        return next(
            (w.seq for w in reversed(memory.writes) if w.start < end and start < w.end), None
        )

    def is_in_flight(self, view: PlainView) -> bool:
        """Return whether nothing has read what a collective leaves in a tensor's bytes."""
        memory = self._storages.get(view.storage)
        if memory is None or not memory.flights:
            return False
        start, end = view.start_byte, view.end_byte
        return any(f.start < end and start < f.end for f in memory.flights)

    def is_copied_in(self, view: PlainView) -> bool:
        """Return whether an op is going to copy a collective's output into a tensor's bytes."""
        memory = self._storages.get(view.storage)
        if memory is None or not memory.flights:
            return False
        start, end = view.start_byte, view.end_byte
        return any(f.by_copy and f.start < end and start < f.end for f in memory.flights)

    def num_in_flight(self) -> int:
        """Return how many outputs of collectives nothing has read."""
        return sum(len(memory.flights) for memory in self._storages.values())

    def renumber(self, first: int, change: Callable[[int], int]) -> None:
        """Give the events from `first` on other numbers."""
        for memory in self._storages.values():
            memory.renumber(lambda seq: change(seq) if seq >= first else seq)

    def forget(self, end: int) -> None:
        """Forget the events before `end`: the record of a step is complete in itself."""
        self._storages.sweep()
        for memory in self._storages.values():
            memory.writes = [w for w in memory.writes if w.seq >= end]
            if memory.views:
                memory.views = {where: seq for where, seq in memory.views.items() if seq >= end}
            if memory.flights:
                memory.flights = [f for f in memory.flights if f.reads and min(f.reads) >= end]

    def _memory(self, storage: torch.UntypedStorage) -> _Memory:
        memory = self._storages.get(storage)
        if memory is None:
            memory = _Memory()
            self._storages.put(storage, memory)
        return memory

    def _land(self, memory: _Memory, storage: torch.UntypedStorage, start: int, end: int) -> None:
        landing = [f for f in memory.flights if f.start < end and start < f.end]
        if landing:
            memory.flights = [f for f in memory.flights if f not in landing]
        for flight in landing:
            tensor = torch.empty(0, dtype=flight.dtype, device=storage.device)
            tensor.set_(storage, flight.offset, flight.size, flight.stride)
            flight.land(tensor, flight.reads)


def _overlap(a: Write, b: Write) -> bool:
    return a.start < b.end and b.start < a.end


def _without(ranges: Ranges, first: int, last: int) -> Ranges:
    """Return what is left of ranges after taking first to last away."""
    rest = []
    for start, end in ranges:
        if last <= start or end <= first:
            rest.append((start, end))
            continue
        if start < first:
            rest.append((start, first))
        if last < end:
            rest.append((last, end))
    return rest
