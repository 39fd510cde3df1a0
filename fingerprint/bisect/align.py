"""The events of one step of both runs, side by side."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.store.run import RankRecord

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_KEY = ("phase", "kind", "module", "call", "op", "occurrence", "slot")
"""What makes two sites of two runs the same point of the program; dtype and shape are beside it."""


class Keys:
    """Numbers site keys, and descriptions (dtype, shape), alike for both runs."""

    def __init__(self) -> None:
        """Start empty."""
        self._keys: dict[tuple[Any, ...], int] = {}
        self._descriptions: dict[tuple[Any, ...], int] = {}

    def number(self, site: dict[str, Any]) -> tuple[int, int]:
        """Return the numbers of a site's key and of its description."""
        key = tuple(site[name] for name in _KEY)
        description = (site["dtype"], *site["shape"])
        return (
            self._keys.setdefault(key, len(self._keys)),
            self._descriptions.setdefault(description, len(self._descriptions)),
        )


class Arm:
    """One run's events of a step, as arrays over the events that the lens shows."""

    def __init__(self, record: RankRecord, step: int, keys: Keys, lens: Lens) -> None:
        """Read the events.

        Raises:
            StoreError: a file is damaged.
        """
        table = record.events(step)
        self.sites: dict[int, dict[str, Any]] = {
            site["site"]: site for site in record.sites().to_pylist()
        }
        site = _ints(table["site"])
        if not lens.is_clear:
            shown = {number for number, row in self.sites.items() if lens.shows(row)}
            keep = np.isin(site, np.array(sorted(shown), np.int64))
            table, site = table.filter(pa.array(keep)), site[keep]
        self.table = table
        self.site = site
        self.seq = _ints(table["seq"])
        self.microbatch = _ints(table["microbatch"])
        self.digest = _digests(table)
        used, where = np.unique(site, return_inverse=True)
        numbers = np.array([keys.number(self.sites[n]) for n in used.tolist()], np.int64)
        self.key, self.description = numbers.reshape(-1, 2)[where].T
        self._lens = lens

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.seq)

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Return (event, producer) as indices; producers outside the step are left out."""
        inputs = self.table["inputs"].combine_chunks()
        counts = np.diff(np.asarray(inputs.offsets)) if len(inputs) else np.zeros(0, np.int64)
        event = np.repeat(np.arange(len(self), dtype=np.int64), counts)
        wanted = self.seq[event] - np.asarray(inputs.flatten(), np.int64)
        producer = np.searchsorted(self.seq, wanted)
        found = (producer < len(self)) & (wanted >= (self.seq[0] if len(self) else 0))
        found &= self.seq[np.minimum(producer, len(self) - 1)] == wanted
        return event[found], producer[found]

    @cached_property
    def span(self) -> Ints:
        """Return how many events just before each event it read."""
        if not self._lens.is_clear:
            return np.arange(len(self), dtype=np.int64)
        span: Ints = np.minimum(_ints(self.table["span"]), np.arange(len(self), dtype=np.int64))
        return span

    def producers(self, index: int) -> list[int]:
        """Return the indices of the events that an event read."""
        event, producer = self.edges
        direct = set(producer[event == index].tolist())
        return sorted(direct | set(range(index - int(self.span[index]), index)))

    def read_any(self, flags: Flags) -> Flags:
        """Return for each event whether it read an event that is flagged."""
        event, producer = self.edges
        result: Flags = np.zeros(len(self), bool)
        np.logical_or.at(result, event, flags[producer])
        before = np.concatenate([[0], np.cumsum(flags)])
        index = np.arange(len(self))
        spans: Flags = before[index] > before[index - self.span]
        return result | spans


@dataclass(frozen=True)
class Aligned:
    """Both arms of a step; row i pairs `index_a[i]` with `index_b[i]`, -1 where one has none.

    Attributes:
        a: run A's events; `b` run B's.
        index_a: index into a, -1 for an event that only B has.
        index_b: index into b.
        same_order: whether the paired events come in the same order in both.
    """

    a: Arm
    b: Arm
    index_a: Ints
    index_b: Ints
    same_order: bool

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.index_a)

    @cached_property
    def paired(self) -> Flags:
        """Rows whose event both arms have."""
        return (self.index_a >= 0) & (self.index_b >= 0)

    @cached_property
    def described_alike(self) -> Flags:
        """Paired rows of equal dtype and shape."""
        result: Flags = self.paired.copy()
        a, b = self.index_a[self.paired], self.index_b[self.paired]
        result[self.paired] = self.a.description[a] == self.b.description[b]
        return result

    @cached_property
    def equal(self) -> Flags:
        """Rows whose event both arms have with equal digest, dtype and shape."""
        result: Flags = self.described_alike.copy()
        a, b = self.index_a[result], self.index_b[result]
        result[result] = (self.a.digest[a] == self.b.digest[b]).all(axis=1)
        return result

    def site(self, row: int) -> dict[str, Any]:
        """Return the site of a row, run A's if both have it."""
        arm, index = self.arm_of(row)
        return arm.sites[int(arm.site[index])]

    def arm_of(self, row: int) -> tuple[Arm, int]:
        """Return (arm, index) of a row's event, run A's if both have it."""
        if self.index_a[row] >= 0:
            return self.a, int(self.index_a[row])
        return self.b, int(self.index_b[row])


def align(a: Arm, b: Arm) -> Aligned:
    """Pair the events of two arms.

    Equal sequences of keys pair by position. Else events pair by microbatch and key, which are
    unique within a step; what only one arm has is put where it would have come.
    """
    index = np.arange(len(a), dtype=np.int64)
    if len(a) == len(b) and (a.key == b.key).all() and (a.microbatch == b.microbatch).all():
        return Aligned(a, b, index, index, True)
    where_b = {place: i for i, place in enumerate(_places(b))}
    pair = np.array([where_b.pop(place, -1) for place in _places(a)], np.int64)
    only_b = np.array(sorted(where_b.values()), np.int64)
    paired_b = pair[pair >= 0]
    in_order = bool((np.diff(paired_b) > 0).all())
    # An event that only B has comes after the A-partner of the event before it in B.
    partner = np.full(len(b) + 1, -1, np.int64)
    partner[paired_b] = index[pair >= 0]
    after = np.maximum.accumulate(partner[:-1]) if len(b) else partner[:-1]
    position = np.concatenate([index, after[only_b]])
    is_b = np.concatenate([np.zeros(len(a), np.int64), np.ones(len(only_b), np.int64)])
    order = np.lexsort((np.concatenate([index, only_b]), is_b, position))
    index_a = np.concatenate([index, np.full(len(only_b), -1, np.int64)])[order]
    index_b = np.concatenate([pair, only_b])[order]
    return Aligned(a, b, index_a, index_b, in_order)


def _places(arm: Arm) -> Iterable[tuple[int, int]]:
    return zip(arm.microbatch.tolist(), arm.key.tolist(), strict=True)


def _ints(column: pa.ChunkedArray) -> Ints:
    result: Ints = column.to_numpy().astype(np.int64, copy=False)
    return result


def _digests(table: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the digests as (events, 2) words, which compare faster than bytes."""
    column = table["digest"].combine_chunks()
    storage = column.storage if hasattr(column, "storage") else column
    data = (
        np.frombuffer(storage.buffers()[1], np.uint64) if len(storage) else np.zeros(0, np.uint64)
    )
    start = 2 * storage.offset
    return data[start : start + 2 * len(storage)].reshape(-1, 2)
