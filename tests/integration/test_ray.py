"""Comparing in a Ray cluster: the same verdict as without, also when a worker dies."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_run import Fleet, write_fleet
from processes import FPDIFF, assert_fails, compare, environment

from fpdiff.store.run import Run

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("ray")
    fleets = {"a": None, "twin": None, "b": (21, 30)}
    sizes: dict[str, Any] = {"ranks": 96, "steps": 50, "shards": 4, "segment_steps": 25}
    return {n: write_fleet(root / n, Fleet(**sizes, planted=p)) for n, p in fleets.items()}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a cluster with two workers."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    started = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield started.address_info["gcs_address"]
    ray.shutdown()


@pytest.mark.parametrize(("pair", "options"), [("twin", []), ("b", ["--count"])])
def test_the_verdict_is_the_same_to_the_last_byte(
    runs: dict[str, Path], address: str, pair: str, options: list[str]
) -> None:
    a, b = runs["a"], runs[pair]
    without = compare(a, b, "--json", *options)
    found = compare(a, b, "--json", *options, "--engine", "ray", "--address", address)
    expected = {"twin": "identical", "b": "diverged"}[pair]
    assert json.loads(without.stdout)["verdict"] == expected
    assert (found.stdout, found.returncode) == (without.stdout, without.returncode)


def test_a_worker_that_dies_is_made_up_for(runs: dict[str, Path], address: str) -> None:
    options = ["--json", "--count"]
    expected = compare(runs["a"], runs["b"], *options).stdout
    command = [*FPDIFF, "compare", runs["a"], runs["b"], *options]
    command += ["--engine", "ray", "--address", address]
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        killed = kill_a_worker(process)
        output, errors = process.communicate(timeout=120)
    assert killed, "no worker was seen at work"
    assert (output, process.returncode) == (expected, 1), errors


def kill_a_worker(process: "subprocess.Popen[str]") -> bool:
    """Kill the first worker that is seen at a task while the process runs."""
    while process.poll() is None:
        for folder in Path("/proc").iterdir():
            try:
                name = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if name.startswith(b"ray::task"):
                    os.kill(int(folder.name), signal.SIGKILL)
                    return True
            except (FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
                continue
        time.sleep(0.005)
    return False


def test_a_damaged_file_is_named_as_without(runs: dict[str, Path], address: str) -> None:
    path = next((runs["twin"] / "steps" / "rank=00007").iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    try:
        result = compare(runs["a"], runs["twin"], "--engine", "ray", "--address", address)
    finally:
        path.write_bytes(whole)
    assert_fails(result, str(path))


def test_what_cannot_be(runs: dict[str, Path]) -> None:
    same = (runs["a"], runs["twin"])
    assert_fails(compare(*same, "--engine", "dask"), "--engine dask", "threads or ray")
    assert_fails(compare(*same, "--address", "x:1"), "--engine ray")


def test_a_run_and_its_ranks_are_opened_anew_elsewhere(runs: dict[str, Path]) -> None:
    import pickle

    run = Run.open(runs["a"]).shifted(3)
    again, rank = pickle.loads(pickle.dumps((run, run.ranks[5])))
    assert again.ranks[5].steps().equals(run.ranks[5].steps())
    assert rank.steps()["step"].to_pylist()[0] == 3
