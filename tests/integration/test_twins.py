"""The main job: two distributed runs, one with a wrong bit, and what compare says of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import (
    FPDIFF,
    TORCHRUN,
    TRAIN_GPT,
    Jobs,
    Preloaded,
    compare,
    compare_json,
    parameters,
    record_well,
    run,
)

GPT_STEPS = 8
FAULT = "rank=1,step=3,module=blocks.1.mlp"
# In a still smaller net the fault is rounded away before the loss.
GPT = ["--steps", GPT_STEPS, "--d-model", 64, "--layers", 3, "--heads", 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    """Job X records to folder/X and returns what was printed; so does `unrecorded`.

    `demo` is one too; it and `a` are started as a user does, the others as forks and from code.
    """
    jobs, preloaded = Jobs(), Preloaded()

    def fork(name: str, *options: object, record: dict[str, object] | None) -> None:
        record = record and {"path": str(folder / name), **record}
        jobs.add(
            name,
            preloaded.run_ranks,
            *(TRAIN_GPT, *GPT, *options),
            output=folder / f"{name}.txt",
            record=record,
        )

    jobs.add("demo", run, [*FPDIFF, "demo", "--keep", folder / "demo"])
    jobs.add("a", lambda: record_well(folder / "a", [*TORCHRUN, TRAIN_GPT, *GPT]).stdout)
    fork("unrecorded", record=None)
    fork("b", record={"level": "layer", "stats": True, "rehash": True})
    fork("faulty", "--fault", FAULT, record={"level": "layer"})
    fork("step a", record={"level": "step"})
    fork("step faulty", "--fault", FAULT, record={"level": "step"})
    yield jobs
    jobs.close()
    preloaded.close()


def verdict_on(jobs: Jobs, folder: Path, a: str, b: str) -> dict[str, Any]:
    """Wait for two runs and compare them."""
    assert jobs[a] and jobs[b]
    return compare_json(folder / a, folder / b)


def test_identical_twins(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "a", "b")
    assert verdict["verdict"] == "identical"
    compared = verdict["compared"]
    assert (compared["rung"], compared["ranks"], compared["steps"]) == ("layer", [0, 1], [0, 7])
    counted = run(
        [
            *(*FPDIFF, "sql", folder / "a", "--format", "csv"),
            "select count(*), count(distinct rank), count(distinct step) from events",
        ]
    )
    assert counted.stdout.splitlines()[1] == f"{compared['events']},2,8"
    text = compare(folder / "a", folder / "b")
    assert text.returncode == 0
    counts = f"{compared['events']:,} events on 2 ranks over 8 steps (steps 0-7), rung layer"
    assert f"identical: {counts}" in " ".join(text.stdout.split())


@pytest.mark.parametrize("name", ["a", "b", "step a"])
def test_the_recorded_ranks_compute_the_same_bits(jobs: Jobs, name: str) -> None:
    bare = parameters(jobs["unrecorded"])
    assert len(bare) == 2 and bare[0] == bare[1]
    assert parameters(jobs[name]) == bare


def test_a_fault_is_named(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "b", "faulty")
    assert (verdict["verdict"], verdict["first_step"]) == ("diverged", 3)
    assert verdict["num_origins"] == 1
    origin = verdict["origins"][0]
    assert (origin["rank"], origin["step"], origin["microbatch"]) == (1, 3, 0)
    assert (origin["phase"], origin["module"]) == ("forward", "blocks.1.mlp")
    assert (origin["class"], origin["op"], origin["slot"]) == ("computation", None, "out.0")
    assert origin["matched_before"] > 3 * 100
    receivers = verdict["receivers"]
    assert [(r["rank"], r["step"], r["from"]) for r in receivers] == [(0, 3, [1])]
    assert verdict["effects"]["parameters"] == 3
    assert not verdict["effects"]["healed"]


def test_a_fault_as_a_person_reads_it(jobs: Jobs, folder: Path) -> None:
    assert jobs["b"] and jobs["faulty"]
    result = compare(folder / "b", folder / "faulty")
    assert (result.returncode, result.stderr) == (1, "")
    first, *rest = result.stdout.split("\n", 1)
    assert first.startswith("diverged: rank 1, step 3, forward: ")
    assert "blocks.1.mlp" in result.stdout
    assert "from rank 1" in " ".join(rest[0].split())


def test_the_order_of_the_runs_does_not_matter(jobs: Jobs, folder: Path) -> None:
    there = verdict_on(jobs, folder, "b", "faulty")
    back = verdict_on(jobs, folder, "faulty", "b")
    for name in ("rank", "step", "phase", "module", "class", "seq"):
        assert there["origins"][0][name] == back["origins"][0][name]
    assert there["effects"] == back["effects"]


def test_the_same_at_rung_step(jobs: Jobs, folder: Path) -> None:
    """Of modules only the root's parameters are known there: it shows in the loss or a gradient."""
    verdict = verdict_on(jobs, folder, "step a", "step faulty")
    assert (verdict["verdict"], verdict["first_step"]) == ("diverged", 3)
    assert verdict["compared"]["rung"] == "step"
    assert {origin["rank"] for origin in verdict["origins"]} == {1}
    origin = verdict["origins"][0]
    assert (origin["step"], origin["class"]) == (3, "computation")
    assert origin["phase"] in ("forward", "backward")
    assert [(r["rank"], r["from"]) for r in verdict["receivers"]] == [(0, [1])]
    assert "--level layer --steps 3" in verdict["next"]


def test_rungs_that_differ_are_compared_at_the_lower(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "step a", "b")
    assert (verdict["verdict"], verdict["compared"]["rung"]) == ("identical", "step")
    assert "A was recorded at rung step, B at layer: compared at step" in verdict["notes"]
    verdict = verdict_on(jobs, folder, "a", "step faulty")
    assert (verdict["verdict"], verdict["first_step"]) == ("diverged", 3)
    assert verdict["origins"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("options", "verdict"),
    [(("--steps", "0:3"), "identical"), (("--ranks", "0", "--steps", "3"), "diverged")],
)
def test_windows_of_compare(
    jobs: Jobs, folder: Path, options: tuple[str, ...], verdict: str
) -> None:
    assert jobs["b"] and jobs["faulty"]
    found = compare_json(folder / "b", folder / "faulty", *options)
    assert found["verdict"] == verdict
    assert not found["origins"] or "--ranks" not in options


def test_the_demo(jobs: Jobs, folder: Path) -> None:
    result = jobs["demo"]
    assert result.returncode == 0, result.stderr
    commands = [line for line in result.stdout.splitlines() if line.startswith("$ fpdiff ")]
    assert [command.split()[2] for command in commands] == ["record", "record", "compare", "sql"]
    assert "\ndiverged: rank 1, step 3, forward: " in result.stdout
    assert "blocks.1.mlp" in result.stdout
    assert "from rank 1" in " ".join(result.stdout.split())
    verdict = compare_json(folder / "demo" / "clean", folder / "demo" / "faulty")
    origin = verdict["origins"][0]
    assert (origin["rank"], origin["step"], origin["phase"]) == (1, 3, "forward")
    assert origin["module"] == "blocks.1.mlp"
    assert [r["from"] for r in verdict["receivers"]] == [[1]]
    assert [d["key"] for d in verdict["environment"] if d["decides"]] == []
    assert json.loads((folder / "demo" / "clean" / "run.json").read_text())["exit_code"] == 0
    again = run([*FPDIFF, "demo", "--keep", folder / "demo"])
    assert again.returncode == 2
    assert "is not an empty folder" in again.stderr
