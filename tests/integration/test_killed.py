"""SIGKILL of one rank of two at random moments: what had been finished is there and compares.

FPDIFF_TEST_KILLS=20 tries twenty moments instead of eight.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAMS, TORCHRUN, Jobs, Preloaded, compare_json, recording, run_info, start

import fpdiff
from fpdiff.store.run import Run

PROGRAM = PROGRAMS / "long_training.py"
STEPS = 250
"""Enough for several segments; a killed run gets less far than that, as a rule."""

NUM_MOMENTS = int(os.environ.get("FPDIFF_TEST_KILLS", "8"))
MOMENTS = [random.Random(moment).uniform(-0.1, 0.5) for moment in range(NUM_MOMENTS)]
"""Seconds after the first step has been finished; before it, if negative."""


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    preloaded = Preloaded()
    yield preloaded
    preloaded.close()


@pytest.fixture(scope="module")
def complete(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    for pid in start_ranks(preloaded, folder):
        assert preloaded.wait(pid) == 0, (folder / "output0.txt").read_text()
    assert finished_steps(folder, 0) == finished_steps(folder, 1) == STEPS
    return folder / "run"


def start_ranks(preloaded: Preloaded, folder: Path) -> list[int]:
    """Start both ranks of the program, each recorded from code, and return their pids."""
    return [
        preloaded.start(
            PROGRAM,
            *(folder, STEPS),
            env={"RANK": rank},
            record={"path": str(folder / "run")},
            output=folder / f"output{rank}.txt",
        )
        for rank in (0, 1)
    ]


def finished_steps(folder: Path, rank: int) -> int:
    """Return how many steps a rank said that it has finished."""
    path = folder / f"rank{rank}.txt"
    return int(path.read_text() or 0) if path.exists() else 0


def wait_for_steps(folder: Path, steps: int) -> None:
    """Wait until rank 1 says that it has finished so many steps."""
    end = time.monotonic() + 60
    while finished_steps(folder, 1) < steps:
        assert time.monotonic() < end
        time.sleep(0.01)


def check(folder: Path, complete: Path) -> None:
    """At most the step in progress is lost, and the run compares with a complete one."""
    run = Run.open(folder / "run")
    least = []
    for rank in (0, 1):
        finished = finished_steps(folder, rank)
        steps = run.ranks[rank].steps()["step"].to_pylist() if rank in run.ranks else []
        assert steps == list(range(len(steps)))
        assert finished <= len(steps) <= finished + 1
        assert all(len(run.ranks[rank].events(step)) for step in steps)
        least.append(len(steps))
    if any(least):
        verdict = fpdiff.compare(complete, folder / "run")
        assert verdict.verdict == "identical", verdict.summary
        assert verdict.compared is not None
        assert verdict.compared.steps == [0, max(least) - 1]
    else:
        with pytest.raises(fpdiff.CompareError, match="(step|rank) in common"):
            fpdiff.compare(complete, folder / "run")


@pytest.fixture(scope="module")
def killed(
    preloaded: Preloaded, complete: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Jobs]:
    """Jobs of which each kills a rank at one moment and returns the folder that is left."""
    jobs = Jobs()
    for moment in MOMENTS:
        jobs.add(str(moment), kill_at, moment, preloaded, tmp_path_factory.mktemp("killed"))
    yield jobs
    jobs.close()


def kill_at(moment: float, preloaded: Preloaded, folder: Path) -> Path:
    survivor, victim = start_ranks(preloaded, folder)
    if moment > 0:
        wait_for_steps(folder, 1)
    time.sleep(abs(moment))
    os.kill(victim, signal.SIGKILL)
    assert preloaded.wait(victim) == -signal.SIGKILL
    if moment < 0:  # It may be waiting for the other to come, for half an hour.
        os.kill(survivor, signal.SIGKILL)
    preloaded.wait(survivor)
    return folder


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment:.3f}s")
def test_killed(killed: Jobs, complete: Path, moment: float) -> None:
    check(killed[str(moment)], complete)


def test_killed_below_torchrun(complete: Path, tmp_path: Path) -> None:
    process = start(recording(tmp_path / "run", [*TORCHRUN, PROGRAM, tmp_path, 100 * STEPS]))
    wait_for_steps(tmp_path, 10)
    victim = Run.open(tmp_path / "run").ranks[1].info["environment"]["pid"]
    os.kill(victim, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert run_info(tmp_path / "run")["exit_code"] == 1
    check(tmp_path, complete)
    verdict = compare_json(complete, tmp_path / "run")
    assert any("was cut short" in note for note in verdict["notes"])
