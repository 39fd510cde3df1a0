"""A fault on one rank of a tensor-parallel model, at rung layer: the other only received it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAMS, Jobs, Preloaded

import fpdiff

RUNS: dict[str, dict[str, object]] = {
    "a": {},
    "twin": {},
    "faulty": {"FAULT": 1},
    "compiled": {"COMPILE": 1},
}
UNRECORDED: dict[str, dict[str, object]] = {"plain": {}, "plain, compiled": {"COMPILE": 1}}
WITHOUT = "without collectives"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensor-parallel")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    jobs, preloaded = Jobs(), Preloaded("torch.distributed.tensor.parallel")
    for name, variables in {**RUNS, WITHOUT: {"FAULT": 1}, **UNRECORDED}.items():
        record = {"path": str(folder / name), "level": "layer", "collectives": name != WITHOUT}
        jobs.add(
            name,
            preloaded.run_ranks,
            PROGRAMS / "tensor_parallel.py",
            env=variables,
            record=None if name in UNRECORDED else record,
            output=folder / f"{name}.txt",
        )
    yield jobs
    jobs.close()
    preloaded.close()


@pytest.mark.parametrize(("plain", "recorded"), [("plain", "a"), ("plain, compiled", "compiled")])
def test_it_computes_the_same_in_the_same_graphs(jobs: Jobs, plain: str, recorded: str) -> None:
    assert sorted(jobs[recorded].split()) == sorted(jobs[plain].split())
    assert "params" in jobs[plain]


def test_twins_are_identical(jobs: Jobs, folder: Path) -> None:
    assert jobs["a"] and jobs["twin"]
    assert fpdiff.compare(folder / "a", folder / "twin").verdict == "identical"


def test_the_faulty_rank_is_named_and_the_other_received_it(jobs: Jobs, folder: Path) -> None:
    assert jobs["a"] and jobs["faulty"]
    found = fpdiff.compare(folder / "a", folder / "faulty")
    assert [(o.rank, o.step, o.phase, o.module) for o in found.origins] == [
        (1, 1, "forward", "0.1.act")
    ]
    assert [(r.rank, r.step, r.from_) for r in found.receivers] == [(0, 1, [1])]
    assert "all_reduce" in found.receivers[0].via


def test_runs_with_and_without_collectives_are_compared_over_what_both_have(
    jobs: Jobs, folder: Path
) -> None:
    assert jobs["a"] and jobs[WITHOUT] and jobs["faulty"]
    same = fpdiff.compare(folder / "faulty", folder / WITHOUT)
    assert same.verdict == "identical"
    assert same.notes == ["only A was recorded with collectives: they are not compared"]
    found = fpdiff.compare(folder / "a", folder / WITHOUT)
    assert {(o.rank, o.module) for o in found.origins} == {(1, "0.1.act"), (0, "0.1")}
