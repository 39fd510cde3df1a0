"""What differs of switches that a program threw in its middle, or for a part of each step."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference
from fpdiff.store.run import RankRecord

_LOOKED_AT = ("forward", "backward", "optimizer")
"""The phases of every training step in which the recorder looks at the switches."""

CHOOSES = frozenset(("deterministic_algorithms", "mkldnn", "sdpa_backends", "default_dtype"))
"""Entries for which torch calls other operators."""

_PHASE = {"recompute": "backward"}
"""Phases in which it does not look, and those that they are a part of."""


class Difference(NamedTuple):
    """Two values of one entry, and where a rank had them.

    Attributes:
        a: in A.
        b: in B.
        since: the first step; None from the beginning.
        until: the last step; None up to the end.
        phases: of these steps, all if empty.
    """

    a: Any
    b: Any
    since: int | None = None
    until: int | None = None
    phases: tuple[str, ...] = ()


class _Timeline:
    """The values of one entry on a rank, by place and step; a place is a phase and a root."""

    def __init__(self, record: RankRecord, key: str) -> None:
        self._beginning = record.environment.get(key)
        self._changes: dict[tuple[str, str], dict[int, Any]] = {}
        for note in record.switched:
            if note["key"] == key:
                of_place = self._changes.setdefault((note["phase"], note["root"]), {})
                of_place[note["step"]] = note["value"]

    @property
    def places(self) -> set[tuple[str, str]]:
        return set(self._changes)

    def steps(self, place: tuple[str, str]) -> set[int]:
        return set(self._changes.get(place, ()))

    def at(self, place: tuple[str, str], step: int | None) -> Any:
        """Return the value at a step, and at None that before any was changed."""
        changes = self._changes.get(place, {})
        known = [] if step is None else [own for own in changes if own <= step]
        return changes[max(known)] if known else self._beginning


def differences(a: RankRecord, b: RankRecord, key: str) -> Iterator[Difference]:
    """Yield where an entry of the environment differs on a rank."""
    lines = _Timeline(a, key), _Timeline(b, key)
    found: dict[str, list[tuple[str, Difference]]] = {}
    places = {(phase, "") for phase in _LOOKED_AT}.union(*(line.places for line in lines))
    for place in sorted(places, key=_in_order):
        for one in _at_place(*lines, place):
            found.setdefault(json.dumps(one[:4]), []).append((place[0], one))
    for own in found.values():
        phases = tuple(dict.fromkeys(phase for phase, _ in own))
        yield own[0][1]._replace(phases=() if {*_LOOKED_AT} <= {*phases} else phases)


def holds(difference: EnvironmentDifference, step: int, phase: str) -> bool:
    """Return whether a difference may bear on what happened in a phase of a step."""
    begun = difference.since is None or difference.since <= step
    if not begun or (difference.until is not None and difference.until < step):
        return False
    looked_at = _PHASE.get(phase, phase)
    # Nobody looks at the switches where operators run outside of these.
    return not difference.phases or looked_at in difference.phases or phase in ("init", "other")


def _at_place(a: _Timeline, b: _Timeline, place: tuple[str, str]) -> Iterator[Difference]:
    steps = sorted(a.steps(place) | b.steps(place))
    for since, until in zip([None, *steps], [*steps, None], strict=True):
        values = a.at(place, since), b.at(place, since)
        is_empty = since is None and until is not None and until <= 0
        if values[0] != values[1] and not is_empty:
            yield Difference(*values, since, None if until is None else until - 1)


def _in_order(place: tuple[str, str]) -> tuple[int, str, str]:
    phase, root = place
    number = _LOOKED_AT.index(phase) if phase in _LOOKED_AT else len(_LOOKED_AT)
    return number, phase, root
