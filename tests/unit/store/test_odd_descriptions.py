"""Descriptions of runs and ranks that are JSON and make no sense: no reader trips over them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Job, at, twist

from fpdiff.fingerprint.bisect.compare import compare_runs
from fpdiff.fingerprint.certify.certify import certify_run
from fpdiff.store.run import Run
from fpdiff.store.summary import summarize
from fpdiff.store.views import connect

READERS: dict[str, Callable[[Path, Path], object]] = {
    "compare": lambda a, b: compare_runs(Run.open(a), Run.open(b)).to_dict(),
    "certify": lambda _, b: certify_run(Run.open(b)).to_dict(),
    "show": lambda _, b: summarize(Run.open(b)),
    "sql": lambda _, b: connect({"b": Run.open(b)}, verify=False).close(),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("runs")
    job: dict[str, Any] = {"steps": [0], "ranks": [0, 1], "layers": 1}
    faulty = Job(**job, edit=at(0, 1, twist("l0.out")))
    return Job(**job).arm(root / "a"), faulty.arm(root / "b")


@pytest.fixture
def faulty(runs: tuple[Path, Path]) -> Iterator[Path]:
    """Yield a run whose descriptions are put back in the end."""
    paths = [runs[1] / "run.json", runs[1] / "ranks" / "rank=00001.json"]
    before = [path.read_text() for path in paths]
    yield runs[1]
    for path, text in zip(paths, before, strict=True):
        path.write_text(text)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", {"exit_code": True, "command": {"a": 1}, "created": []}),
        ("run.json", {"exit_code": 10**30, "ended": 3, "settings": ["steps"]}),
        ("run.json", {"settings": {"steps": [[0, "x"]], "ranks": [[0, 10**30]], "modules": 7}}),
        ("rank", {"blind_spots": {"a": "b", "c": None, "d": 2}, "stopped": [1]}),
        ("rank", {"blind_spots": ["a"], "environment": ["b"], "settings": "c"}),
        ("rank", {"environment": {"alone": None, "hostname": 7, "decides.devices": {}}}),
        ("rank", {"environment": {"process_groups": [{"ranks": ["x", 1]}, 3]}}),
        ("rank", {"environment": {"world_size": 10**30}}),
        ("rank", {"environment": {"world_size": True, "process_groups": {}}}),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_what_makes_no_sense_is_passed_over(
    runs: tuple[Path, Path], faulty: Path, file: str, content: dict[str, Any], reader: str
) -> None:
    path = faulty / ("run.json" if file == "run.json" else "ranks/rank=00001.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    READERS[reader](runs[0], faulty)


def test_a_rung_that_is_no_text_can_be_certified(faulty: Path) -> None:
    path = faulty / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"level": ["layer"]}))
    assert certify_run(Run.open(faulty)).rung == "['layer']"


def test_counts_that_are_numbers_count(faulty: Path) -> None:
    path = faulty / "ranks" / "rank=00001.json"
    spots = {"a": "b", "c": True, "d": 2}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"blind_spots": spots}))
    assert Run.open(faulty).ranks[1].blind_spots == {"d": 2}
    assert summarize(Run.open(faulty)).blind_spots == {"d": 2}
