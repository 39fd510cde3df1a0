"""A rank that fails and is restarted by torchrun's elastic agent, and one that hangs."""

import os
import signal
from pathlib import Path

from processes import (
    FPDIFF,
    PROGRAMS,
    PYTHON,
    TORCHRUN,
    compare_json,
    record,
    recording,
    run,
    run_info,
    start,
)

from fpdiff.store.run import Run

PROGRAM = PROGRAMS / "restarted.py"
ELASTIC = [*TORCHRUN, "--max-restarts", "1"]


def steps_of(path: Path) -> list[list[int]]:
    ranks = Run.open(path).ranks.values()
    return [record.steps()["step"].to_pylist() for record in ranks]


def test_both_attempts_of_a_restarted_job_are_kept_apart_and_readable(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = record(out, [*ELASTIC, PROGRAM, "fails", tmp_path], "--level", "layer")
    assert result.returncode == 0, result.stderr
    again = out / "attempt=1"
    assert steps_of(again) == [list(range(6))] * 2
    # Rank 0 waits for rank 1 in step 3 when it is ended.
    assert all(steps[:3] == [0, 1, 2] and len(steps) < 6 for steps in steps_of(out))
    assert (run_info(out)["exit_code"], run_info(again)["exit_code"]) == (None, 0)
    verdict = compare_json(out, again)
    assert verdict["verdict"] == "identical" and verdict["compared"]["num_steps"] >= 3
    assert any("restarted" in note and "attempt=1" in note for note in verdict["notes"])
    shown = run([*FPDIFF, "show", out]).stdout
    assert f"see{again},arunofitsown" in "".join(shown.split())
    forced = record(out, [*PYTHON, PROGRAMS / "train_tiny.py"], "--force")
    assert forced.returncode == 0 and not again.exists(), forced.stderr


def test_a_rank_that_hangs_leaves_what_was_done_before(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(recording(out, [*TORCHRUN, PROGRAM, "hangs", tmp_path], "--level", "layer"))
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "hanging"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert all(steps[:3] == [0, 1, 2] for steps in steps_of(out))
    assert compare_json(out, out)["verdict"] == "identical"
