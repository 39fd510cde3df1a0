"""Every event that differs, counted: not only those of each rank's first differing step."""

from collections.abc import Iterator

import numpy as np

from fpdiff.fingerprint.bisect.arm import Flags, Ints, Sites, digest_words
from fpdiff.fingerprint.bisect.origins import beyond_the_end
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import Counted
from fpdiff.store.events import EventRows, one_piece

_COLUMNS = ("microbatch", "digest")


def count(tier: RankTier) -> Counted:
    """Count the events that differ on one rank.

    Steps of as many events in both runs are read in one go and compared by position. Where it
    turns out that the places of the program are others, steps are aligned one by one.

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
    if not len(steps):
        return events, differing, is_exact
    places = None if tier.numbers_sites_alike else [_Places(sites) for sites in tier.sites]
    for a, b in _side_by_side(*tier.events_of(steps, _COLUMNS)):
        site_a, site_b = (rows.table["site"].to_numpy() for rows in (a, b))
        is_same = np.array_equal(a.steps, b.steps) and np.array_equal(a.first, b.first)
        is_same = is_same and a.table["microbatch"].equals(b.table["microbatch"])
        if places is not None and is_same:
            (site_a, what_a), (site_b, what_b) = (
                place.of(site) for place, site in zip(places, (site_a, site_b), strict=True)
            )
        if not is_same or not np.array_equal(site_a, site_b):
            wrong = np.concatenate([a.steps, b.steps])
            is_exact[np.searchsorted(steps, wrong)] = False
            continue
        words_a, words_b = (digest_words(one_piece(r.table["digest"])) for r in (a, b))
        # The halves of a digest that differ are two flags, which are one number of two bytes.
        differs = (words_a != words_b).view(np.uint16)[:, 0] != 0
        if places is not None:
            differs |= what_a != what_b
        at = np.searchsorted(steps, a.steps)
        np.add.at(events, at, np.diff(a.first, append=len(a)))
        np.add.at(differing, at, np.add.reduceat(differs, a.first, dtype=np.int64))
    return events, differing, is_exact


class _Places:
    """Numbers of the key and the description of each site, by the site's number."""

    def __init__(self, sites: Sites) -> None:
        size = int(sites.number.max(initial=-1)) + 1
        self._key, self._description = np.full((2, size), -1, np.int64)
        self._key[sites.number] = sites.key
        self._description[sites.number] = sites.description

    def of(self, site: Ints) -> tuple[Ints, Ints]:
        return self._key[site], self._description[site]


def _side_by_side(
    a: Iterator[EventRows], b: Iterator[EventRows]
) -> Iterator[tuple[EventRows, EventRows]]:
    """Yield as many rows of both at a time; at the end, what one has beyond the other."""
    here, there = (next(parts, None) for parts in (a, b))
    while here is not None and there is not None:
        rows = min(len(here), len(there))
        if rows:
            yield here.slice(0, rows), there.slice(0, rows)
        here = next(a, None) if len(here) == rows else here.slice(rows)
        there = next(b, None) if len(there) == rows else there.slice(rows)
    for left, parts in ((here, a), (there, b)):
        while left is not None:
            if len(left):
                yield left, left.slice(0, 0)
            left = next(parts, None)
