"""One way of training, recorded in every way, and what must be true of it: a row of a table."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flip import Fault, judge, places
from processes import PROGRAMS, Jobs, Preloaded

import fpdiff
from fpdiff.fingerprint.verify.check import first_difference

FOLDER = PROGRAMS / "works_with"

COLUMNS = {
    "layer": "records `layer`",
    "op": "records `op`",
    "twins": "twins identical",
    "fault at layer": "fault named, `layer`",
    "fault at op": "fault named, `op`",
    "bits": "bits unchanged",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case of a program, and the fault to plant.

    Attributes:
        title: what it is, for the table.
        script: file in programs/works_with/; `case` is the name of one of its functions.
        op: where a bit is flipped: the first call of this op in `module`, `phase` and `step` on
            `rank`. None if the case itself plants the fault, told the step by the variable FAULT;
            `as_op` is what then is named at the rung op.
        at_layer: what is named at the rung layer, if not module and phase of the op.
        no: columns that do not hold, and why.
        says: a blind spot that the recorder must count.
        has_hooks: the optimizer fires hooks, so that `fpdiff verify` can watch its steps.
        note: for the table.
    """

    title: str
    script: str
    case: str
    op: str | None = None
    as_op: str | None = None
    module: str = ""
    phase: str = "forward"
    step: int = 1
    rank: int = 0
    at_layer: Mapping[str, Any] = field(default_factory=dict)
    num_ranks: int = 1
    no: Mapping[str, str] = field(default_factory=dict)
    says: str | None = None
    has_hooks: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """Return a name for files and tests."""
        return f"{self.script.removesuffix('.py')} {self.case}"


class Recordings:
    """All executions of a row's program, begun before anybody looks at one."""

    def __init__(
        self,
        row: Row,
        folder: Path,
        jobs: Jobs,
        preloaded: Preloaded,
        env: Mapping[str, object],
    ) -> None:
        """Line up the executions."""
        self.row, self.folder, self.jobs = row, folder, jobs
        self._preloaded, self._env = preloaded, env
        self._add("bare")
        for name in ("layer a", "op a", "op b"):
            self._add(name, level=name.split()[0])
        for level in ("layer", "op"):
            self._add(f"{level} faulty", level=level, is_faulty=True)

    def _add(self, name: str, level: str | None = None, *, is_faulty: bool = False) -> None:
        self.jobs.add(f"{self.row.name} {name}", self._run, name, level, is_faulty)

    def _run(self, name: str, level: str | None, is_faulty: bool) -> str:
        row, preloaded = self.row, self._preloaded
        watched = self.folder / f"{name} watched"
        watched.mkdir()
        flips = is_faulty and row.op is not None
        how: dict[str, Any] = {
            "output": self.folder / f"{name}.txt",
            "watch": watched,
            "record": None if level is None else {"path": str(self.folder / name), "level": level},
            "fault": dataclasses.asdict(self.fault()) if flips else None,
            "env": {**self._env, **({"FAULT": row.step} if is_faulty and not flips else {})},
        }
        if row.num_ranks == 1:
            return preloaded.run(FOLDER / row.script, row.case, **how)
        ranks = row.num_ranks
        return preloaded.run_ranks(FOLDER / row.script, row.case, num_ranks=ranks, **how)

    def output(self, name: str) -> str:
        """Wait for an execution and return what it printed of its case."""
        text: str = self.jobs[f"{self.row.name} {name}"]
        words = (f"{self.row.case}: ", "counted: ")
        return "".join(line for line in text.splitlines(True) if line.startswith(words))

    def run(self, name: str) -> Path:
        """Wait for an execution and return its record."""
        self.output(name)
        return self.folder / name

    def fault(self) -> Fault:
        """Return the fault, as it is found in a record without it."""
        row = self.row
        if row.op is None:
            return Fault(row.rank, 0, None, "", "", row.step, row.phase, row.module, 0)
        names = ("op", "module", "phase", "step", "rank")
        faults = places(self.run("op a"))
        for fault in faults:
            if all(getattr(fault, name) == getattr(row, name) for name in names):
                return fault
        others = sorted({(f.op, f.module, f.phase) for f in faults if f.step == row.step})
        raise AssertionError(f"{row.name}: {row.op} was not recorded there, but {others}")

    @cached_property
    def shortcomings(self) -> dict[str, str]:
        """The columns that do not hold, with what was found instead."""
        row, fault = self.row, self.fault()
        at_layer = dataclasses.replace(fault, **{"op": None, "occurrence": 0, **row.at_layer})
        at_op = dataclasses.replace(fault, op=row.op or row.as_op)
        found = {
            "layer": _unrecorded(self.run("layer a"), row),
            "op": _unrecorded(self.run("op a"), row),
            "twins": "; ".join(_twins(self)),
            "fault at layer": self._misjudged("layer", at_layer),
            "fault at op": self._misjudged("op", at_op),
            "bits": "; ".join(_changed(self)),
        }
        return {column: text for column, text in found.items() if text}

    def _misjudged(self, level: str, fault: Fault) -> str:
        outcome, details = judge(self.run(f"{level} a"), self.run(f"{level} faulty"), fault)
        assert outcome != "missed", details
        return "" if outcome == "exact" else f"{outcome}: {details}"


def _unrecorded(path: Path, row: Row) -> str:
    """Return what is missing in a record of every rank from beginning to end."""
    ranks = fpdiff.open_run(path).ranks
    if list(ranks) != list(range(row.num_ranks)):
        return f"ranks {list(ranks)} were recorded"
    for record in ranks.values():
        info = record.info
        if not info["finished"] or "stopped" in info:
            return str(info.get("stopped", "not finished"))
        if row.says is not None and row.says not in info["blind_spots"]:
            return f"blind spots {list(info['blind_spots'])}"
        steps = record.steps()["step"].to_pylist()
        if steps[:2] != [0, 1]:
            return f"steps {steps}"
        phases = {site["phase"] for site in record.sites().to_pylist()}
        if not {"forward", "backward", "optimizer"} <= phases:
            return f"phases {phases}"
    return ""


def _twins(recordings: Recordings) -> list[str]:
    """Return how twins differ: two at rung op, and one at layer from what one at op has of it."""
    other = recordings.run("op b")
    verdicts = {
        level: fpdiff.compare(recordings.run(f"{level} a"), other) for level in ("layer", "op")
    }
    return [
        f"{level}: {verdict.summary}"
        for level, verdict in verdicts.items()
        if verdict.verdict != "identical"
    ]


def _changed(recordings: Recordings) -> list[str]:
    """Return what recording changed: results, random state, parameters after each step."""
    bare, changed = recordings.output("bare"), []
    assert "failed" not in bare, bare
    for name in ("layer a", "op a", "op b"):
        if recordings.output(name) != bare:
            changed.append(f"{name}: {recordings.output(name)} instead of {bare}")
        if not recordings.row.has_hooks:
            continue
        own, other = (recordings.folder / f"{one} watched" for one in ("bare", name))
        assert list(own.iterdir()), "no optimizer of torch stepped"
        if (difference := first_difference(own, other, recordings.run(name))) is not None:
            changed.append(f"{name}: {difference.what}")
    return changed


def table(rows: list[Recordings], others: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the lines of a table of what was found; `others` has further rows' cell and remark."""
    lines = [
        f"| | {' | '.join(COLUMNS.values())} | remarks |",
        f"|---|{'---|' * len(COLUMNS)}---|",
    ]
    for one in rows:
        row, found = one.row, one.shortcomings
        cells = ["no" if column in found else "yes" for column in COLUMNS]
        reasons = [f"{COLUMNS[column]}: {reason}" for column, reason in row.no.items()]
        lines.append(_line(row.title, cells, "; ".join(filter(None, [row.note, *reasons]))))
    for title, (cell, remark) in others.items():
        lines.append(_line(title, [cell] * len(COLUMNS), remark))
    return lines


def _line(title: str, cells: list[str], remarks: str) -> str:
    return f"| {' | '.join([title, *cells, remarks])} |"
