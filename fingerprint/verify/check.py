"""Runs a command with and without the recorder, and compares what became of its parameters."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from fpdiff.fingerprint.record.job import launcher
from fpdiff.fingerprint.record.settings import WATCH_VARIABLE, Settings
from fpdiff.store.errors import RecordError
from fpdiff.store.run import Run

Watched = dict[int, list[list[str]]]
"""By rank, after each optimizer step, the digests of its parameters."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two executions of the command part ways.

    Attributes:
        rank: the rank; None where one execution lacks ranks or ended otherwise.
        step: nth optimizer step of the rank, from 0.
        parameter: the first parameter that differs, None where the number of steps does.
        what: a sentence.
    """

    rank: int | None
    step: int | None
    parameter: str | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What came of it.

    Attributes:
        verdict: "valid"; "invalid" if recording changed something; "unknown" if the command's own
            repeats differ.
        summary: one line that says it all.
        level: the rung that was recorded.
        ranks: how many ranks were watched.
        steps: how many optimizer steps, of all ranks.
        tensors: how many parameters were compared, of all steps.
        difference: the first, if there is one.
    """

    verdict: str
    summary: str
    level: str
    ranks: int
    steps: int
    tensors: int
    difference: Difference | None = None

    @property
    def exit_code(self) -> int:
        """Return 0 for valid, 1 for invalid, 2 for unknown."""
        return {"valid": 0, "invalid": 1}.get(self.verdict, 2)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": 1, **asdict(self)}


def verify(
    settings: Settings,
    command: list[str],
    folder: Path,
    say: Callable[[str], None],
    stdout: IO[str] | None = None,
) -> Verification:
    """Run a command without and with the recorder.

    Args:
        settings: what to record; `out` is replaced.
        command: program and arguments.
        folder: an empty folder; the record is left in `recorded`, the digests in `watched-*`.
        say: called before each execution.
        stdout: the command's standard output, if not this process's.

    Raises:
        RecordError: the command cannot be run, fails without the recorder, or no optimizer of
            torch steps in it; or there is no room for the digests.
    """
    say("without the recorder")
    bare = _read(_execute(command, folder / "watched-bare", stdout))
    if not any(bare.values()):
        raise RecordError(
            f"{command[0]!r} ended without a step of a torch.optim optimizer: there are no"
            " parameters to compare"
        )
    say(f"recorded at rung {settings.level}")
    settings = replace(settings, out=str(folder / "recorded"))
    watched = folder / "watched-recorded"
    watched.mkdir()
    variables = {WATCH_VARIABLE: str(watched)}
    code = launcher.run(settings, command, variables=variables, stdout=stdout)
    if code:
        what = f"the command exits with {code} when it is recorded, and with 0 when not"
        different: Difference | None = Difference(rank=None, step=None, parameter=None, what=what)
    else:
        different = first_difference(folder / "watched-bare", watched, folder / "recorded")
    valid = Verification(
        verdict="valid",
        summary="",
        level=settings.level,
        ranks=len(bare),
        steps=sum(map(len, bare.values())),
        tensors=sum(len(digests) for steps in bare.values() for digests in steps),
    )
    if different is None:
        return replace(valid, summary=_unchanged(valid))
    say("without the recorder once more, since something differs")
    watched = _execute(command, folder / "watched-again", stdout)
    again = first_difference(folder / "watched-bare", watched, folder / "recorded")
    if again is not None:
        what = f"two executions without the recorder differ as well: {again.what}"
        return replace(valid, verdict="unknown", summary=what, difference=again)
    return replace(valid, verdict="invalid", summary=different.what, difference=different)


def _unchanged(valid: Verification) -> str:
    ranks = f"{valid.ranks:,} rank{'' if valid.ranks == 1 else 's'}"
    return (
        f"{valid.tensors:,} parameters after {valid.steps:,} optimizer steps on {ranks} are bitwise"
        f" the same without the recorder and recorded at rung {valid.level}"
    )


def _execute(command: list[str], folder: Path, stdout: IO[str] | None) -> Path:
    folder.mkdir()
    code = launcher.execute(command, {WATCH_VARIABLE: str(folder)}, stdout)
    if code:
        raise RecordError(f"{command[0]!r} exits with {code} without the recorder: mend that first")
    return folder


def _read(folder: Path) -> Watched:
    """Return the digests that an execution left.

    Raises:
        RecordError: some could not be written.
    """
    watched: Watched = {}
    for path in sorted(folder.glob("rank=*.jsonl")):
        rank, text = int(path.stem.removeprefix("rank=")), path.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            raise RecordError(
                f"the parameters of rank {rank} were not watched to the end: make room in"
                f" {folder.parent}, or give --keep another folder"
            )
        watched[rank] = [json.loads(line) for line in text.splitlines()]
    return watched


def first_difference(bare: Path, watched: Path, run: Path) -> Difference | None:
    """Return the first difference between two executions: of the least step, then rank.

    Args:
        bare: the folder that one left its digests in.
        watched: that of the other.
        run: a record of one, for the parameters' names.

    Raises:
        RecordError: some digests could not be written.
    """
    a, b = _read(bare), _read(watched)
    if a.keys() != b.keys():
        what = f"ranks {sorted(a)} step an optimizer in one execution, {sorted(b)} in the other"
        return Difference(rank=None, step=None, parameter=None, what=what)
    found = []
    for rank, steps in a.items():
        others = b[rank]
        if len(steps) != len(others):
            step = min(len(steps), len(others))
            what = f"rank {rank} has {len(steps)} optimizer steps in one execution, {len(others)}"
            what += " in the other"
            found.append(Difference(rank=rank, step=step, parameter=None, what=what))
        for step, (own, other) in enumerate(zip(steps, others, strict=False)):
            if own != other:
                found.append(_in_step(rank, step, own, other, run))
                break
    return min(found, key=lambda d: (d.step, d.rank), default=None)


def _in_step(rank: int, step: int, own: list[str], other: list[str], run: Path) -> Difference:
    differing = [i for i, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]]
    if not differing:
        what = f"rank {rank}, optimizer step {step}: {len(own)} parameters in one execution,"
        return Difference(
            rank=rank, step=step, parameter=None, what=f"{what} {len(other)} in the other"
        )
    name = _name(run, rank, differing[0], len(own))
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    what = f"rank {rank}, after optimizer step {step}: {name}{more} of {len(own)} differ"
    return Difference(rank=rank, step=step, parameter=name, what=what)


def _name(run: Path, rank: int, index: int, count: int) -> str:
    """Return the name of an optimizer's nth parameter, from the record where it has it."""
    fallback = f"parameter {index}"
    if not (run / "run.json").exists():
        return fallback
    record = Run.open(run).ranks.get(rank)
    if record is None:
        return fallback
    names = [
        f"{site['module']}.{site['slot']}".lstrip(".")
        for site in record.sites().sort_by("site").to_pylist()
        if site["phase"] == "optimizer" and site["kind"] in ("parameter", "master")
    ]
    return names[index] if len(names) == count else fallback
