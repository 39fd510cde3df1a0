"""A disk that fills up while recording: the training does not notice, the run says so."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import (
    FPDIFF,
    PYTHON,
    TINY,
    Jobs,
    compare_json,
    parameters,
    rank_info,
    record,
    record_well,
    run,
)

from fpdiff.store.run import Run

STEPS = 150  # More than a segment.
TRAIN = [*PYTHON, TINY, "--steps", STEPS]
LIMIT = 'ulimit -f 128; exec "$0" "$@"'  # In blocks of 512 bytes: no file gets larger.


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Mount a disk of 200 kB; a test that may not is skipped, since others show the same."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    try:
        subprocess.run(mount, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Yield a run that nothing disturbed, and the parameters that an unrecorded one ends with."""
    folder, jobs = tmp_path_factory.mktemp("complete"), Jobs()
    jobs.add("complete", record_well, folder / "run", TRAIN)
    jobs.add("unrecorded", run, TRAIN)
    assert jobs["complete"]
    yield folder / "run", parameters(jobs["unrecorded"].stdout)
    jobs.close()


def check(out: Path, stderr: str, complete: Path, step: int) -> None:
    """The run says that it stopped, and where; it is equal to the complete one until there."""
    lines = stderr.splitlines()
    assert sum("warn" in line.lower() for line in lines) == 2, stderr  # The warning, its source.
    assert f"fpdiff: recording stopped in step {step}: OSError: " in stderr
    info = rank_info(out)
    assert not info["finished"]
    assert info["stopped"].startswith(f"recording stopped in step {step}: OSError: ")
    shown = json.loads(run([*FPDIFF, "show", out, "--json"]).stdout)
    assert shown["ranks"][0]["state"] == "stopped"
    assert shown["exit_code"] == 3
    text = " ".join(run([*FPDIFF, "show", out]).stdout.split())
    assert f"stopped 0: recording stopped in step {step}: " in text
    verdict = compare_json(complete, out)
    assert verdict["verdict"] == "identical"
    assert verdict["compared"]["steps"] == [0, step - 1]
    assert any(f"recording stopped in step {step}" in note for note in verdict["notes"])


@pytest.mark.parametrize("how", ["disk", "limit"])
def test_full_disk(complete: tuple[Path, list[str]], tmp_path: Path, how: str) -> None:
    whole, expected = complete
    disk = tmp_path / "disk"
    command = [*TRAIN, "--exit", 3]
    if how == "disk":
        with small_disk(disk):
            result = record(disk / "run", command)
            subprocess.run(["cp", "-a", disk / "run", tmp_path / "run"], check=True)
    else:
        result = record(tmp_path / "run", ["sh", "-c", LIMIT, *command])
    assert result.returncode == 3, result.stderr
    assert parameters(result.stdout) == expected
    steps = Run.open(tmp_path / "run").ranks[0].steps()["step"].to_pylist()
    assert steps == list(range(len(steps)))
    assert 5 < len(steps) < STEPS
    check(tmp_path / "run", result.stderr, whole, len(steps))


def test_full_disk_where_warnings_are_errors(
    complete: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """A warning of ours must not end a training that runs under `python -W error`."""
    strict = [*PYTHON, "-W", "error::UserWarning", TINY, "--steps", STEPS, "--exit", 3]
    result = record(tmp_path / "run", ["sh", "-c", LIMIT, *strict])
    assert result.returncode == 3, result.stderr
    assert parameters(result.stdout) == complete[1]
    assert "fpdiff: recording stopped in step " in result.stderr
