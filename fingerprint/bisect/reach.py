"""What an origin led to in its step: the way from it to the loss, or to a parameter."""

from collections import deque

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Flags, Ints, Site, is_kind

MAX_EVENTS = 200_000
"""In a step with more mismatched events no way is looked for."""


def ancestors(aligned: Aligned, mismatched: Flags, row: int) -> Flags:
    """Return the mismatched rows that a mismatched row's event read, directly or not."""
    found: Flags = np.zeros(len(aligned), bool)
    found[row] = True
    source, target = _edges(aligned, mismatched)
    while (new := found[target] & ~found[source]).any():
        found[source[new]] = True
    return found


class Consequences:
    """The mismatched events of a step, by what they read."""

    def __init__(self, aligned: Aligned, mismatched: Flags) -> None:
        """Index the edges among the mismatched rows."""
        self._aligned = aligned
        self._is_target = aligned.having(is_kind("loss")) | aligned.having(_is_updated)
        source, target = _edges(aligned, mismatched)
        order = np.lexsort((target, source))
        self._source: Ints = source[order]
        self._target: Ints = target[order]

    def path(self, row: int) -> list[int]:
        """Return the rows from an origin to the first loss or updated parameter that it reached.

        Both ends are included; empty if it reached none.
        """
        before: dict[int, int] = {row: -1}
        waiting = deque([row])
        while waiting and len(before) <= MAX_EVENTS:
            here = waiting.popleft()
            if self._is_target[here]:
                way = [here]
                while (here := before[here]) >= 0:
                    way.append(here)
                return way[::-1]
            first, end = np.searchsorted(self._source, [here, here + 1])
            for following in self._target[first:end].tolist():
                if following not in before:
                    before[following] = here
                    waiting.append(following)
        return []


def _edges(aligned: Aligned, mismatched: Flags) -> tuple[Ints, Ints]:
    """Return (producer, reader) for each edge among mismatched rows, of both arms."""
    source, target = aligned.edges
    keep = mismatched[source] & mismatched[target]
    return source[keep], target[keep]


def _is_updated(site: Site) -> bool:
    return bool(site["kind"] == "parameter" and site["phase"] == "optimizer")
