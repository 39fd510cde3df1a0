"""The main job: two distributed runs, one with a wrong bit, and what compare says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from processes import FPDIFF, Jobs, compare, compare_json, run


def verdict_on(jobs: Jobs, folder: Path, a: str, b: str) -> dict[str, Any]:
    """Wait for two runs and compare them."""
    assert jobs[a] and jobs[b]
    return compare_json(folder / a, folder / b)


def test_identical_twins(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    verdict = verdict_on(gpt_jobs, gpt_folder, "a", "b")
    assert verdict["verdict"] == "identical"
    compared = verdict["compared"]
    assert (compared["rung"], compared["ranks"], compared["steps"]) == ("layer", [0, 1], [0, 7])
    counted = run(
        [
            *(*FPDIFF, "sql", gpt_folder / "a", "--format", "csv"),
            "select count(*), count(distinct rank), count(distinct step) from events",
        ]
    )
    assert counted.stdout.splitlines()[1] == f"{compared['events']},2,8"
    text = compare(gpt_folder / "a", gpt_folder / "b")
    assert text.returncode == 0
    counts = f"{compared['events']:,} events on 2 ranks over 8 steps (steps 0-7), rung layer"
    assert f"identical: {counts}" in " ".join(text.stdout.split())


def test_a_fault_is_named(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    verdict = verdict_on(gpt_jobs, gpt_folder, "b", "faulty")
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


def test_a_fault_as_a_person_reads_it(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    assert gpt_jobs["b"] and gpt_jobs["faulty"]
    result = compare(gpt_folder / "b", gpt_folder / "faulty")
    assert (result.returncode, result.stderr) == (1, "")
    first, *rest = result.stdout.split("\n", 1)
    assert first.startswith("diverged: rank 1, step 3, forward: ")
    assert "blocks.1.mlp" in result.stdout
    assert "from rank 1" in " ".join(rest[0].split())


def test_the_order_of_the_runs_does_not_matter(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    there = verdict_on(gpt_jobs, gpt_folder, "b", "faulty")
    back = verdict_on(gpt_jobs, gpt_folder, "faulty", "b")
    for name in ("rank", "step", "phase", "module", "class", "seq"):
        assert there["origins"][0][name] == back["origins"][0][name]
    assert there["effects"] == back["effects"]


def test_the_same_at_rung_step(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    """Of modules only the root's parameters are known there: it shows in the loss or a gradient."""
    verdict = verdict_on(gpt_jobs, gpt_folder, "step a", "step faulty")
    assert (verdict["verdict"], verdict["first_step"]) == ("diverged", 3)
    assert verdict["compared"]["rung"] == "step"
    assert {origin["rank"] for origin in verdict["origins"]} == {1}
    origin = verdict["origins"][0]
    assert (origin["step"], origin["class"]) == (3, "computation")
    assert origin["phase"] in ("forward", "backward")
    assert [(r["rank"], r["from"]) for r in verdict["receivers"]] == [(0, [1])]
    assert "--level layer --steps 3" in verdict["next"]


def test_rungs_that_differ_are_compared_at_the_lower(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    verdict = verdict_on(gpt_jobs, gpt_folder, "step a", "b")
    assert (verdict["verdict"], verdict["compared"]["rung"]) == ("identical", "step")
    assert "A was recorded at rung step, B at layer: compared at step" in verdict["notes"]
    verdict = verdict_on(gpt_jobs, gpt_folder, "a", "step faulty")
    assert (verdict["verdict"], verdict["first_step"]) == ("diverged", 3)
    assert verdict["origins"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("options", "verdict"),
    [(("--steps", "0:3"), "identical"), (("--ranks", "0", "--steps", "3"), "diverged")],
)
def test_windows_of_compare(
    gpt_jobs: Jobs, gpt_folder: Path, options: tuple[str, ...], verdict: str
) -> None:
    assert gpt_jobs["b"] and gpt_jobs["faulty"]
    found = compare_json(gpt_folder / "b", gpt_folder / "faulty", *options)
    assert found["verdict"] == verdict
    assert not found["origins"] or "--ranks" not in options


def test_the_demo(gpt_jobs: Jobs, gpt_folder: Path) -> None:
    result = gpt_jobs["demo"]
    assert result.returncode == 0, result.stderr
    commands = [line for line in result.stdout.splitlines() if line.startswith("$ fpdiff ")]
    assert [command.split()[2] for command in commands] == ["record", "record", "compare", "sql"]
    assert "\ndiverged: rank 1, step 3, forward: " in result.stdout
    assert "blocks.1.mlp" in result.stdout
    assert "from rank 1" in " ".join(result.stdout.split())
    verdict = compare_json(gpt_folder / "demo" / "clean", gpt_folder / "demo" / "faulty")
    origin = verdict["origins"][0]
    assert (origin["rank"], origin["step"], origin["phase"]) == (1, 3, "forward")
    assert origin["module"] == "blocks.1.mlp"
    assert [r["from"] for r in verdict["receivers"]] == [[1]]
    assert [d["key"] for d in verdict["environment"] if d["decides"]] == []
    assert json.loads((gpt_folder / "demo" / "clean" / "run.json").read_text())["exit_code"] == 0
    again = run([*FPDIFF, "demo", "--keep", gpt_folder / "demo"])
    assert again.returncode == 2
    assert "is not an empty folder" in again.stderr
