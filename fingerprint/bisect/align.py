"""The events of one step of both runs, side by side."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect.arm import Arm, Flags, Ints, Site, is_collective
from fpdiff.fingerprint.bisect.calls import pair_at_parameters, pair_calls
from fpdiff.fingerprint.bisect.microbatches import behind


@dataclass(frozen=True)
class Aligned:
    """Both arms of a step; row i pairs `index_a[i]` with `index_b[i]`, -1 where one has none.

    Attributes:
        a: run A's events; `b` run B's.
        index_a: index into a, -1 for an event that only B has.
        index_b: index into b.
    """

    a: Arm
    b: Arm
    index_a: Ints
    index_b: Ints

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

    @cached_property
    def microbatches(self) -> Ints:
        """Return each row's microbatch."""
        result = np.zeros(len(self), np.int64)
        for arm, index in ((self.b, self.index_b), (self.a, self.index_a)):
            result[index >= 0] = arm.microbatch[index[index >= 0]]
        return result

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """Return the row of each of A's events, and of each of B's."""
        return _inverse(self.index_a, len(self.a)), _inverse(self.index_b, len(self.b))

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Return (row of the producer, row of the reader) of each edge, of both arms."""
        sides = ((self.a, self.rows[0]), (self.b, self.rows[1]))
        found = [(rows[p], rows[e]) for arm, rows in sides for e, p in (arm.edges,)]
        source, target = (np.concatenate(part) for part in zip(*found, strict=True))
        return source, target

    @cached_property
    def calls_in_a(self) -> dict[tuple[Any, ...], int]:
        """Return, for the collectives that both arms call, B's call and the index of one in A."""
        rows = np.flatnonzero(self.paired & self.having(is_collective))
        pairs = zip(self.index_a[rows].tolist(), self.index_b[rows].tolist(), strict=True)
        return {self.b.call_of(in_b): in_a for in_a, in_b in pairs}

    def having(self, test: Callable[[Site], bool]) -> Flags:
        """Return for each row whether its site passes a test."""
        result: Flags = np.zeros(len(self), bool)
        for arm, index in ((self.b, self.index_b), (self.a, self.index_a)):
            present = index >= 0
            result[present] = arm.sites.having(test)[arm.site[index[present]]]
        return result

    def moved(self, counted: Flags) -> Ints:
        """Return the fewest rows that account for events coming in another order.

        Args:
            counted: rows whose order matters; those that only one arm has never do.
        """
        rows = np.flatnonzero(self.paired & counted)
        order = self.index_b[rows]
        if (np.diff(order) > 0).all():
            return np.zeros(0, np.int64)
        return rows[~_longest_rise(order)]

    def site(self, row: int) -> Site:
        """Return the site of a row, run A's if both have it."""
        arm, index = self.arm_of(row)
        return arm.site_of(index)

    def arm_of(self, row: int) -> tuple[Arm, int]:
        """Return (arm, index) of a row's event, run A's if both have it."""
        if self.index_a[row] >= 0:
            return self.a, int(self.index_a[row])
        return self.b, int(self.index_b[row])


def align(a: Arm, b: Arm) -> Aligned:
    """Pair the events of two arms.

    Equal sequences of keys pair by position. Else events pair by microbatch and key, those of ops
    as `pair_calls` says. Either way `pair_at_parameters` has the last word. What only one arm has
    is put where it would have come. Where one run's record starts (a resumed run against one that
    was not interrupted), the other's ops before the step's first module are left out. Microbatches
    that one arm has in front are numbered as the last ones.
    """
    if a.is_the_start != b.is_the_start:
        a, b = (arm if arm.is_the_start else arm.without_prelude() for arm in (a, b))
    index = np.arange(len(a), dtype=np.int64)
    if len(a) == len(b) and (a.key == b.key).all() and (a.microbatch == b.microbatch).all():
        return Aligned(a, b, index, pair_at_parameters(a, b, index))
    a, b = behind(a, b)
    pair = pair_at_parameters(a, b, pair_calls(a, b, _pair(a, b)))
    is_only_b = np.ones(len(b), bool)
    is_only_b[pair[pair >= 0]] = False
    only_b = np.flatnonzero(is_only_b)
    # An event that only B has comes after the A-partner of the event before it in B.
    partner = np.full(len(b), -1, np.int64)
    partner[pair[pair >= 0]] = index[pair >= 0]
    position = np.concatenate([index, np.maximum.accumulate(partner)[only_b]])
    is_b = np.concatenate([np.zeros(len(a), np.int64), np.ones(len(only_b), np.int64)])
    order = np.lexsort((np.concatenate([index, only_b]), is_b, position))
    index_a = np.concatenate([index, np.full(len(only_b), -1, np.int64)])[order]
    return Aligned(a, b, index_a, np.concatenate([pair, only_b])[order])


def _pair(a: Arm, b: Arm) -> Ints:
    """Return for each of A's events the index of B's with its microbatch and key, or -1.

    Where a place comes more than once in a step, the nth pairs with the nth: none is lost.
    """
    columns = [(arm.microbatch, arm.key) for arm in (a, b)]
    both = np.stack([np.concatenate(parts) for parts in zip(*columns, strict=True)])
    _, place = np.unique(both, axis=1, return_inverse=True)
    place = place.reshape(-1)
    place_a, place_b = ((_number_repeats(p)) for p in (place[: len(a)], place[len(a) :]))
    order = np.argsort(place_b, kind="stable")
    found = np.searchsorted(place_b, place_a, sorter=order)
    pair = np.full(len(a), -1, np.int64)
    inside = found < len(b)
    candidate = order[found[inside]]
    pair[inside] = np.where(place_b[candidate] == place_a[inside], candidate, -1)
    return pair


def _number_repeats(place: Ints) -> Ints:
    """Return numbers that tell repeats of a number apart: the first, the second, ..."""
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    first = np.searchsorted(ordered, ordered)
    repeat = np.empty(len(place), np.int64)
    repeat[order] = np.arange(len(place)) - first
    return (place.astype(np.int64) << 32) + repeat


def _inverse(index: Ints, count: int) -> Ints:
    rows = np.empty(count, np.int64)
    rows[index[index >= 0]] = np.flatnonzero(index >= 0)
    return rows


def _longest_rise(numbers: Ints) -> Flags:
    """Return which entries make up a longest strictly rising subsequence."""
    values: list[int] = numbers.tolist()
    tails: list[int] = []
    ranks = []
    for number in values:
        rank = bisect_left(tails, number)
        ranks.append(rank)
        if rank == len(tails):
            tails.append(number)
        else:
            tails[rank] = number
    kept: list[int] = []
    wanted, below = len(tails) - 1, 0
    for i in range(len(values) - 1, -1, -1):
        if ranks[i] == wanted and (not kept or values[i] < below):
            kept.append(i)
            wanted, below = wanted - 1, values[i]
    result: Flags = np.zeros(len(values), bool)
    result[kept] = True
    return result
