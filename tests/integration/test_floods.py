"""One cause that shows as many origins is one group, and a second cause is seen beside it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAMS, Jobs, Preloaded, parameters
from synthetic_runs import verdict_of

from fpdiff.cli.main import run as run_command

EXPECTED: dict[tuple[str, str], list[tuple[int, int, str]]] = {
    ("layer", "eval"): [(26, 26, "training flag training")],
    ("op", "eval"): [(26, 26, "training flag training")],
    ("layer", "average"): [(24, 24, "parameter of a module outside the root ~Net.inp.weight")],
    ("op", "average"): [(24, 24, "arguments of aten.lerp_ (weight)")],
    # Norms start from constants.
    ("layer", "seed"): [
        (16, 24, "parameter inp.weight"),
        (16, 24, "parameter of a module outside the root ~Net.inp.weight"),
    ],
    ("layer", "load"): [
        (24, 24, "parameter inp.weight"),
        (24, 24, "optimizer state inp.weight.exp_avg"),
        (24, 24, "optimizer state inp.weight.exp_avg_sq"),
    ],
    ("layer", "rate"): [(2, 2, "param_group option optimizer0.group0.lr")],
    ("op", "rate"): [(2, 2, "param_group option optimizer0.group0.lr")],
    ("layer", "rate+decay"): [
        (2, 2, "param_group option optimizer0.group0.lr"),
        (1, 1, "param_group option optimizer0.group0.weight_decay"),
        (1, 1, "param_group option optimizer0.group1.betas"),
    ],
    ("layer", "frozen"): [(1, 1, "other parameters of the root module are frozen")],
    ("op", "frozen"): [(1, 1, "other parameters of the root module are frozen")],
    ("layer", "frozen+nudge"): [
        (1, 24, "parameter blocks.1.mlp.0.weight"),
        (1, 1, "other parameters of the root module are frozen"),
    ],
    ("layer", "rate+nudge"): [
        (1, 24, "parameter blocks.1.mlp.0.weight"),
        (2, 2, "param_group option optimizer0.group0.lr"),
    ],
}
"""By rung and changes, the groups: how many origins of how many such events, and the first."""

FROM_THE_START = {"eval", "seed"}
"""The others show in step 1."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Jobs]]:
    """A folder, and jobs that record to it, each under its name: rung, changes, number."""
    folder, jobs, preloaded = tmp_path_factory.mktemp("floods"), Jobs(), Preloaded()

    def add(level: str, changes: str, number: int = 0) -> None:
        name = f"{level} {changes} {number}"
        record = None if level == "none" else {"path": str(folder / name), "level": level}
        how = {"output": folder / f"{name}.txt", "record": record}
        words = changes.split("+") if changes else []
        jobs.add(name, preloaded.run, PROGRAMS / "train_changed.py", *words, **how)

    add("none", "schedule")
    for level in ("layer", "op"):
        add(level, "schedule")
        add(level, "schedule", 1)
        add(level, "")
    for level, changes in EXPECTED:
        add(level, changes)
    yield folder, jobs
    jobs.close()
    preloaded.close()


@pytest.mark.parametrize("level", ["layer", "op"])
def test_twins_whose_scheduler_steps_early_are_silent_and_undisturbed(
    runs: tuple[Path, Jobs], level: str
) -> None:
    folder, jobs = runs
    names = [f"{level} schedule {number}" for number in range(2)]
    ends = [parameters(jobs[name]) for name in ("none schedule 0", *names)]
    assert ends[0] == ends[1] == ends[2]
    verdict = verdict_of(*(folder / name for name in names))
    assert (verdict.verdict, verdict.groups) == ("identical", [])


@pytest.mark.parametrize(("level", "changes"), EXPECTED)
def test_the_groups(
    runs: tuple[Path, Jobs], level: str, changes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, jobs = runs
    names = f"{level}  0", f"{level} {changes} 0"
    assert all(jobs[name] for name in names)
    verdict = verdict_of(*(folder / name for name in names))
    first = 0 if changes in FROM_THE_START else 1
    assert (verdict.verdict, verdict.first_step) == ("diverged", first)
    expected = EXPECTED[level, changes]
    found = [(g.count, g.of, verdict.origins[g.origins[0]]) for g in verdict.groups]
    assert [(count, of) for count, of, _ in found] == [(count, of) for count, of, _ in expected]
    for (*_, origin), (*_, what) in zip(found, expected, strict=True):
        assert f"{what} " in origin.summary
        assert origin.class_ == ("arguments" if "arguments" in what else "state")
    assert verdict.num_origins == sum(count for count, _, _ in expected)

    assert run_command(["compare", *(str(folder / name) for name in names)]) == 1
    text = capsys.readouterr().out
    assert text.count("\n  origin ") == len(expected)  # All groups are shown, each once.
    assert all(
        f"{count} of {of} likewise" in text.replace("\n" + 15 * " ", " ")
        for count, of, _ in expected
        if count > 1
    )
    assert run_command(["compare", "--json", *(str(folder / name) for name in names)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [group["count"] for group in told["groups"]] == [count for count, _, _ in expected]
    assert len(told["origins"]) == told["num_origins"] == verdict.num_origins
