"""Every event that differs, counted: not only those of each rank's first differing step."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fpdiff.fingerprint.bisect.arm import Flags, Ints, Sites, digest_words
from fpdiff.fingerprint.bisect.origins import beyond_the_end
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import Counted

_COLUMNS = ("microbatch", "digest")


def count(tier: RankTier) -> Counted:
    """Count the events that differ on one rank.

    Steps of as many events in both runs are read in one go and compared by position, as long as
    the same places of the program come in the same order; other steps are aligned one by one.

    Raises:
        StoreError: a file is damaged.
    """
    steps = tier.differences.steps
    alike = tier.steps_of_equal_length(steps)
    events, differing, is_exact = _by_position(tier, alike)
    found = Counted(
        steps=int(is_exact.sum()),
        events=int(events[is_exact].sum()),
        differing=int(differing[is_exact].sum()),
    )
    for step in np.setdiff1d(steps, alike[is_exact]).tolist():
        aligned = tier.aligned(step)
        different = ~aligned.equal & ~beyond_the_end(aligned)
        found += Counted(steps=1, events=len(aligned), differing=int(different.sum()))
    tier.release()
    return found


def _by_position(tier: RankTier, steps: Ints) -> tuple[Ints, Ints, Flags]:
    """Return for each step its events, those that differ, and whether the places were the same."""
    events, differing = np.zeros((2, len(steps)), np.int64)
    is_exact: Flags = np.ones(len(steps), bool)
    sides = tier.events_of(steps, _COLUMNS) if len(steps) else []
    pairs = [(_Places(sites), tables) for sites, tables in sides]
    for a, b in _side_by_side(*(tables for _, tables in pairs)) if pairs else ():
        if a.num_rows != b.num_rows:  # One run has events of a step that it never closed.
            left = np.concatenate([table["step"].to_numpy() for table in (a, b)])
            is_exact[np.searchsorted(steps, left)] = False
            continue
        (site_a, what_a), (site_b, what_b) = (
            places.of(table) for (places, _), table in zip(pairs, (a, b), strict=True)
        )
        step_a, step_b = (table["step"].to_numpy() for table in (a, b))
        batch_a, batch_b = (table["microbatch"].to_numpy() for table in (a, b))
        same = (step_a == step_b) & (site_a == site_b) & (batch_a == batch_b)
        words_a, words_b = digest_words(a), digest_words(b)
        differs = (words_a[:, 0] != words_b[:, 0]) | (words_a[:, 1] != words_b[:, 1])
        differs |= what_a != what_b
        for step, first, end in _stretches(step_a):
            at = np.searchsorted(steps, step)
            events[at] += end - first
            differing[at] += np.count_nonzero(differs[first:end])
        if not same.all():
            wrong = np.concatenate([step_a[~same], step_b[~same]])
            is_exact[np.searchsorted(steps, wrong)] = False
    return events, differing, is_exact


class _Places:
    """Numbers of the key and the description of each site, by the site's number."""

    def __init__(self, sites: Sites) -> None:
        size = int(sites.number.max(initial=-1)) + 1
        self._key, self._description = np.full((2, size), -1, np.int64)
        self._key[sites.number] = sites.key
        self._description[sites.number] = sites.description

    def of(self, table: pa.Table) -> tuple[Ints, Ints]:
        site = table["site"].to_numpy()
        return self._key[site], self._description[site]


def _stretches(steps: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (step, first row, row after its last) of each stretch of rows of one step."""
    first = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1)) if len(steps) else steps
    ends = np.append(first[1:], len(steps))
    yield from zip(steps[first].tolist(), first.tolist(), ends.tolist(), strict=True)


def _side_by_side(
    a: Iterator[pa.Table], b: Iterator[pa.Table]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield as many rows of both at a time; at the end, what one has beyond the other."""
    here, there = (next(tables, None) for tables in (a, b))
    while here is not None and there is not None:
        rows = min(here.num_rows, there.num_rows)
        if rows:
            yield here.slice(0, rows), there.slice(0, rows)
        here = next(a, None) if here.num_rows == rows else here.slice(rows)
        there = next(b, None) if there.num_rows == rows else there.slice(rows)
    for left, tables in ((here, a), (there, b)):
        while left is not None:
            if left.num_rows:
                yield left, left.slice(0, 0)
            left = next(tables, None)
