"""Which calls of an op only one run made, where the runs made another number of them.

An op's calls within a module's call are counted, so one more of them gives all later ones other
numbers. Here those that are alike get the same number: what only one run did is then a difference,
and what comes after it is not.
"""

from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher

import numpy as np

from fpdiff.fingerprint.bisect.arm import Arm, Ints

_MAX_CALLS = 2000
"""Of so many calls at one place it is not asked which are alike: the time grows with the square."""

_NOT_ITS_OWN = ("input", "uninitialised", "rewrite")
"""Events that depend on who was first to read a tensor."""

_Call = list[int]
"""The indices of a call's events."""


def match_calls(a: Arm, b: Arm) -> tuple[Arm, Arm]:
    """Return the arms with the calls of ops numbered so that those alike have the same number."""
    arms = a, b
    places = [arm.microbatch << 32 | arm.sites.place[arm.site] for arm in arms]
    counts = [_counts(arm, place) for arm, place in zip(arms, places, strict=True)]
    occurrence = [arm.occurrence.copy() for arm in arms]
    for place in sorted(counts[0].keys() & counts[1].keys()):
        # The arm with fewer calls keeps its numbers: neither run is the reference.
        few, many = sorted((0, 1), key=lambda side: counts[side][place])
        if counts[few][place] == counts[many][place] or counts[many][place] > _MAX_CALLS:
            continue
        calls = [
            _calls(arm, np.flatnonzero(own == place)) for arm, own in zip(arms, places, strict=True)
        ]
        partner = _partners(arms[few], calls[few], arms[many], calls[many])
        extra = len(calls[few])
        for number, call in enumerate(calls[many]):
            if number in partner:
                occurrence[many][call] = partner[number]
            else:
                occurrence[many][call] = extra
                extra += 1
    return a.renumbered(occurrence[0]), b.renumbered(occurrence[1])


def _counts(arm: Arm, place: Ints) -> dict[int, int]:
    """Return how many calls there are at each place."""
    is_op = arm.sites.place[arm.site] >= 0
    order = np.lexsort((arm.occurrence[is_op], place[is_op]))
    place, occurrence = place[is_op][order], arm.occurrence[is_op][order]
    last = np.flatnonzero(np.append(place[1:] != place[:-1], True)) if len(place) else order
    return dict(zip(place[last].tolist(), (occurrence[last] + 1).tolist(), strict=True))


def _calls(arm: Arm, indices: Ints) -> list[_Call]:
    """Return the events of each call at a place, by its number."""
    calls: list[_Call] = [[] for _ in range(int(arm.occurrence[indices].max()) + 1)]
    for index in indices.tolist():
        calls[int(arm.occurrence[index])].append(index)
    return calls


def _partners(few_arm: Arm, few: list[_Call], many_arm: Arm, many: list[_Call]) -> dict[int, int]:
    """Return, by the number of a call in one arm, that of its partner in the other.

    Alike are calls of equal content, else of equal dtypes and shapes, else those that come next.
    """
    partner: dict[int, int] = {}
    gaps = [(range(len(few)), range(len(many)))]
    for by_content in (True, False):
        sides = [
            [_signature(arm, call, by_content=by_content) for call in calls]
            for arm, calls in ((few_arm, few), (many_arm, many))
        ]
        rest = []
        for x, y in gaps:
            for kind, u, v in _alike([sides[0][i] for i in x], [sides[1][i] for i in y]):
                if kind == "equal":
                    partner.update(zip(y[v.start : v.stop], x[u.start : u.stop], strict=True))
                else:
                    rest.append((x[u.start : u.stop], y[v.start : v.stop]))
        gaps = rest
    for x, y in gaps:
        partner.update(zip(y, x, strict=False))
    return partner


def _alike(x: Sequence[Hashable], y: Sequence[Hashable]) -> Iterable[tuple[str, slice, slice]]:
    for kind, a, b, c, d in SequenceMatcher(None, x, y, autojunk=False).get_opcodes():
        yield kind, slice(a, b), slice(c, d)


def _signature(arm: Arm, call: _Call, *, by_content: bool) -> Hashable:
    events = []
    for index in call:
        site = arm.site_of(index)
        if site["kind"] not in _NOT_ITS_OWN:
            digest = arm.digest[index].tobytes() if by_content else b""
            events.append((site["kind"], site["slot"], int(arm.description[index]), digest))
    return tuple(events)
