"""What two runs have in common, and what about them differs without being a tensor."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from fpdiff.fingerprint.bisect.switches import Difference, differences
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference
from fpdiff.fingerprint.bisect.wording import ranks_text
from fpdiff.store.errors import CompareError
from fpdiff.store.files import attempts
from fpdiff.store.run import RankRecord, Run

RUNGS = ("step", "layer", "op", "kernel")

OP_RUNGS = RUNGS[2:]
"""Those that know what each operator read."""

_DECIDES = "decides."
_UNREMARKABLE = {"argv", "pid", "executable", "local_rank", "node_rank"}
"""Entries that differ between any two launches, or that the command says already."""

_ADDED = {"decides.fp32_precision", "decides.sdpa_backends"}
"""Entries that runs of before, or with an older torch, do not have."""


@dataclass(frozen=True)
class Common:
    """What is compared.

    Attributes:
        rung: the deepest rung of both.
        rungs_differ: whether the two have different ones, or only one has collectives at its rung.
        ranks: ranks of both.
        modules: regular expressions of the windows of modules, where they differ between runs.
        notes: what limits the comparison.
        environment: entries that differ.
        blind_spots: by reason, counts of both.
    """

    rung: str
    rungs_differ: bool
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
    digests = [run.info.get("digest") for run in (a, b)]
    if digests[0] != digests[1]:
        raise CompareError(
            f"{a.path} holds {digests[0]} digests and {b.path} {digests[1]}: record one of them"
            " again with the other's --digest"
        )
    notes: list[str] = []
    common = _common_ranks(a, b, ranks, notes)
    is_windowed = bool(ranks) or any(run.settings.get("ranks") for run in (a, b))
    if not is_windowed and (absent := _absent_members(a, b, common)):
        verb = "is" if len(absent) == 1 else "are"
        notes.append(
            f"{ranks_text(absent)} {verb} in a process group and in neither run:"
            " no module ran there"
        )
    levels = [_level(run) for run in (a, b)]
    rung = min(levels, key=RUNGS.index)
    if levels[0] != levels[1]:
        notes.append(f"A was recorded at rung {levels[0]}, B at {levels[1]}: compared at {rung}")
    meetings = [_has_collectives(run) for run in (a, b)]
    if meetings[0] != meetings[1] and rung == "layer":
        notes.append(
            f"only {'A' if meetings[0] else 'B'} was recorded with collectives: they are not"
            " compared"
        )
    windows = [_modules(run) for run in (a, b)]
    if windows[0] != windows[1]:
        shown = [f"--modules {window!r}" if window else "all modules" for window in windows]
        notes.append(
            f"A was recorded for {shown[0]}, B for {shown[1]}: compared over what both have"
        )
    for label, run in (("A", a), ("B", b)):
        notes += _unfinished(label, run, common)
        if later := attempts(run.path):
            names = ", ".join(later)
            notes.append(
                f"{label}'s job was restarted: its first attempt is compared; {names} in its folder"
                f" {'is a run' if len(later) == 1 else 'are runs'} too"
            )
        notes += _undescribed(label, run, common)
    return Common(
        rung=rung,
        rungs_differ=levels[0] != levels[1] or meetings[0] != meetings[1],
        ranks=common,
        modules=sorted({w for w in windows if w}) if windows[0] != windows[1] else [],
        notes=notes,
        environment=_environment(a, b, common),
        blind_spots=_blind_spots(a, b, common),
    )


def _level(run: Run) -> str:
    level = run.info.get("level")
    if level not in RUNGS:
        raise CompareError(
            f"{run.path} was recorded at rung {level}, which this version of fpdiff cannot"
            f" compare: it knows {' and '.join(RUNGS)}"
        )
    return str(level)


def _has_collectives(run: Run) -> bool:
    """Return whether a run recorded what it had no choice about, or had and did."""
    return _level(run) != "layer" or bool(run.settings.get("collectives"))


def _modules(run: Run) -> str:
    pattern = str(run.settings.get("modules") or "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise CompareError(
            f"{run.path} was recorded for modules {pattern!r}, no regular expression: {error}"
        ) from error
    return pattern


def _common_ranks(a: Run, b: Run, wanted: tuple[int, ...], notes: list[str]) -> list[int]:
    common = sorted(set(a.ranks) & set(b.ranks))
    for label, run, other in (("A", a, b), ("B", b, a)):
        missing = sorted(set(other.ranks) - set(run.ranks))
        if missing and not wanted:
            notes.append(f"{label} has no {ranks_text(missing)}: the others are compared")
    if wanted:
        absent = sorted(set(wanted) - set(common))
        if absent:
            have = ranks_text(common) if common else "no rank"
            verb = "is" if len(absent) == 1 else "are"
            raise CompareError(f"{ranks_text(absent)} {verb} not in both runs; both have {have}")
        common = sorted(set(wanted))
    if not common:
        raise CompareError(
            f"{a.path} and {b.path} have no rank in common: one has"
            f" {ranks_text(sorted(a.ranks))}, the other {ranks_text(sorted(b.ranks))}"
        )
    return common


def _absent_members(a: Run, b: Run, common: list[int]) -> list[int]:
    """Return the ranks that reduce with those compared and that neither run has."""
    seen: dict[int, list[Any]] = {}  # Thousands of ranks share the list that names thousands.
    for run in (a, b):
        for rank in common:
            groups = run.ranks[rank].environment.get("process_groups")
            for group in groups if isinstance(groups, list) else []:
                ranks = group.get("ranks") if isinstance(group, dict) else None
                if isinstance(ranks, list):
                    seen[id(ranks)] = ranks
    members = {rank for ranks in seen.values() for rank in ranks if isinstance(rank, int)}
    return sorted(members - set(a.ranks) - set(b.ranks))


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
            f"{label}'s record of {ranks_text(open_ranks)} {what}: its complete steps are compared"
        )
    return notes


def _undescribed(label: str, run: Run, ranks: list[int]) -> list[str]:
    missing = [rank for rank in ranks if not run.ranks[rank].environment]
    if not missing:
        return []
    return [f"{label} has no description of {ranks_text(missing)}: environments are not compared"]


def _environment(a: Run, b: Run, ranks: list[int]) -> list[EnvironmentDifference]:
    found: dict[tuple[str, str], list[int]] = {}
    values: dict[tuple[str, str], Difference] = {}
    for rank in ranks:
        first, second = (run.ranks[rank] for run in (a, b))
        if not first.environment or not second.environment:
            continue
        for key in _comparable(first, second):
            for difference in differences(first, second, key):
                place = (key, json.dumps(difference))
                found.setdefault(place, []).append(rank)
                values[place] = difference
    for key in ("command", "cwd", "git_commit"):
        if a.info.get(key) != b.info.get(key):
            found[key, ""] = list(ranks)
            values[key, ""] = Difference(a.info.get(key), b.info.get(key))
    listed = [
        EnvironmentDifference(
            key=place[0].removeprefix(_DECIDES),
            a=values[place].a,
            b=values[place].b,
            ranks=on,
            decides=place[0].startswith(_DECIDES),
            since=values[place].since,
            until=values[place].until,
            phases=list(values[place].phases),
        )
        for place, on in found.items()
    ]
    return sorted(listed, key=lambda d: (not d.decides, d.key, d.ranks, d.since or 0))


def _comparable(a: RankRecord, b: RankRecord) -> list[str]:
    """Return the entries that may differ on a rank; what only a newer fpdiff noted is none."""
    in_either = a.environment.keys() | b.environment.keys()
    in_both = a.environment.keys() & b.environment.keys()
    switched = {str(note["key"]) for note in (*a.switched, *b.switched)}
    differ = {key for key in in_either if a.environment.get(key) != b.environment.get(key)}
    return sorted((differ | switched) - _UNREMARKABLE - (_ADDED - in_both))


def _blind_spots(a: Run, b: Run, ranks: list[int]) -> list[dict[str, Any]]:
    counts: dict[str, list[int]] = {}
    for side, run in enumerate((a, b)):
        for rank in ranks:
            for reason, count in run.ranks[rank].blind_spots.items():
                counts.setdefault(reason, [0, 0])[side] += count
    return [{"reason": r, "a": n[0], "b": n[1]} for r, n in sorted(counts.items())]
