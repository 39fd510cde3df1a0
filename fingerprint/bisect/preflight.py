"""What two runs have in common, and what about them differs without being a tensor."""

import json
from dataclasses import dataclass, field
from typing import Any

from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference
from fpdiff.store.errors import CompareError
from fpdiff.store.run import RankRecord, Run

RUNGS = ("step", "layer")

_DECIDES = "decides."
_UNREMARKABLE = {"argv", "pid", "executable", "local_rank", "node_rank"}
"""Entries that differ between any two launches, or that the command says already."""

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Common:
    """What is compared.

    Attributes:
        rung: the deepest rung of both.
        ranks: ranks of both.
        modules: regular expressions of the windows of modules, where they differ between runs.
        notes: what limits the comparison.
        environment: entries that differ.
        blind_spots: by reason, counts of both.
    """

    rung: str
    ranks: list[int]
    modules: list[str]
    notes: list[str] = field(default_factory=list)
    environment: list[EnvironmentDifference] = field(default_factory=list)
    blind_spots: list[dict[str, Any]] = field(default_factory=list)


def preflight(a: Run, b: Run, ranks: tuple[int, ...]) -> Common:
    """Find what can be compared.

    Args:
        a: the reference.
        b: the other run.
        ranks: compare only these, all if empty.

    Raises:
        CompareError: other digest algorithms, or no rank in common.
    """
    if a.info["digest"] != b.info["digest"]:
        raise CompareError(
            f"{a.path} holds {a.info['digest']} digests and {b.path} {b.info['digest']}: record"
            " one of them again"
        )
    notes: list[str] = []
    common = _common_ranks(a, b, ranks, notes)
    rung = min(a.info["level"], b.info["level"], key=RUNGS.index)
    if a.info["level"] != b.info["level"]:
        notes.append(
            f"A was recorded at rung {a.info['level']}, B at {b.info['level']}: compared at {rung}"
        )
    windows = [str(run.info["settings"].get("modules", "")) for run in (a, b)]
    if windows[0] != windows[1]:
        notes.append("the runs were recorded for other modules: compared over those of both")
    for label, run in (("A", a), ("B", b)):
        notes += _unfinished(label, run, common)
    return Common(
        rung=rung,
        ranks=common,
        modules=sorted({w for w in windows if w}) if windows[0] != windows[1] else [],
        notes=notes,
        environment=_environment(a, b, common),
        blind_spots=_blind_spots(a, b, common),
    )


def _common_ranks(a: Run, b: Run, wanted: tuple[int, ...], notes: list[str]) -> list[int]:
    common = sorted(set(a.ranks) & set(b.ranks))
    for label, run, other in (("A", a, b), ("B", b, a)):
        missing = sorted(set(other.ranks) - set(run.ranks))
        if missing:
            notes.append(f"{label} has no rank {_list(missing)}: the others are compared")
    if wanted:
        absent = sorted(set(wanted) - set(common))
        if absent:
            raise CompareError(f"rank {_list(absent)} is not in both runs; both have {common}")
        common = sorted(set(wanted))
    if not common:
        raise CompareError(
            f"{a.path} and {b.path} have no rank in common: {_list(sorted(a.ranks)) or 'none'}"
            f" against {_list(sorted(b.ranks)) or 'none'}"
        )
    return common


def _unfinished(label: str, run: Run, ranks: list[int]) -> list[str]:
    notes = []
    open_ranks = []
    for rank in ranks:
        info = run.ranks[rank].info
        if info.get("stopped"):
            notes.append(f"{label}, rank {rank}: {info['stopped']}")
        elif not info.get("finished"):
            open_ranks.append(rank)
    if open_ranks:
        what = "was cut short" if run.info.get("ended") else "has not finished"
        notes.append(
            f"{label}'s record of rank {_list(open_ranks)} {what}: its closed steps are compared"
        )
    return notes


def _environment(a: Run, b: Run, ranks: list[int]) -> list[EnvironmentDifference]:
    found: dict[tuple[str, str, str], list[int]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for rank in ranks:
        first, second = (_flat(run.ranks[rank]) for run in (a, b))
        if not first or not second:
            continue
        for key in sorted(first.keys() | second.keys()):
            pair = first.get(key), second.get(key)
            if pair[0] != pair[1] and key not in _UNREMARKABLE:
                place = (key, json.dumps(pair[0]), json.dumps(pair[1]))
                found.setdefault(place, []).append(rank)
                values[place] = pair
    for key in ("command", "cwd", "git_commit"):
        if a.info.get(key) != b.info.get(key):
            place = (key, "", "")
            found[place] = list(ranks)
            values[place] = (a.info.get(key), b.info.get(key))
    differences = [
        EnvironmentDifference(
            key=place[0].removeprefix(_DECIDES),
            a=values[place][0],
            b=values[place][1],
            ranks=on,
            decides=place[0].startswith(_DECIDES),
        )
        for place, on in found.items()
    ]
    return sorted(differences, key=lambda d: (not d.decides, d.key, d.ranks))


def _flat(record: RankRecord) -> dict[str, Any]:
    found = record.info.get("environment", {})
    return found if isinstance(found, dict) else {}


def _blind_spots(a: Run, b: Run, ranks: list[int]) -> list[dict[str, Any]]:
    counts: dict[str, list[int]] = {}
    for side, run in enumerate((a, b)):
        for rank in ranks:
            for reason, count in run.ranks[rank].info.get("blind_spots", {}).items():
                counts.setdefault(reason, [0, 0])[side] += count
    return [{"reason": r, "a": n[0], "b": n[1]} for r, n in sorted(counts.items())]


def _list(numbers: list[int]) -> str:
    """Return numbers as `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
