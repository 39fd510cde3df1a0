"""`fpdiff certify` on real runs: two ranks under torchrun, and activation checkpointing."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import FPDIFF, PROGRAMS, TORCHRUN, Jobs, Preloaded, record_well, run
from recorded import hide_the_past, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fpdiff
from fpdiff.fingerprint.certify.certificate import Certificate
from fpdiff.fingerprint.certify.certify import certify_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certify")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    jobs, preloaded = Jobs(), Preloaded()
    program = PROGRAMS / "two_ranks.py"
    jobs.add("whole", record_well, folder / "whole", [*TORCHRUN, program], "--level", "op")
    jobs.add(
        "drift",
        preloaded.run_ranks,
        program,
        env={"TWIST": "drift"},
        record={"path": str(folder / "drift"), "level": "op"},
        output=folder / "drift.txt",
    )
    yield jobs
    jobs.close()
    preloaded.close()


def certificate_of(path: Path, exit_code: int) -> dict[str, Any]:
    result = run([*FPDIFF, "certify", path, "--json"])
    assert (result.returncode, result.stderr) == (exit_code, ""), result.stdout
    certificate: dict[str, Any] = json.loads(result.stdout)
    return certificate


def test_data_parallel_ranks_are_sound(jobs: Jobs, folder: Path) -> None:
    assert jobs["whole"] is not None
    found = certificate_of(folder / "whole", 0)
    assert (found["verdict"], found["rung"], found["ranks"]) == ("sound", "op", [0, 1])
    assert found["blind_spots"] == {} and found["notes"] == []
    results = {check["name"]: check["result"] for check in found["checks"]}
    assert {name for name, result in results.items() if result != "sound"} == {"recomputation"}
    calls = found["checks"][4]["rests_on"]
    assert calls == "28 calls, 38 results compared"


def test_a_replica_that_drifts_is_named(jobs: Jobs, folder: Path) -> None:
    assert jobs["drift"] is not None
    found = certificate_of(folder / "drift", 1)
    assert found["summary"] == "rank 1, step 2: parameter mid.weight drifted from rank 0"
    assert found["num_findings"] == 1


class Block(nn.Module):
    def __init__(self, factor: Callable[[], float]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 4)
        self.drop = nn.Dropout(0.5)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.inner(x)) * self.factor()
        return self.outer(self.drop(hidden)).sigmoid()  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, factor: Callable[[], float], **options: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block(lambda: 1.0), Block(factor)])
        self.options: dict[str, Any] = {"use_reentrant": False} | options

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, **self.options)
        # A function that is no module, of an operator that the forward ran before.
        return checkpoint(lambda y: torch.relu(torch.relu(y) * 2), x, **self.options)  # type: ignore[no-any-return]


def certified(path: Path, model: nn.Module, **options: Any) -> Certificate:
    hide_the_past()
    with fpdiff.record(path, level="op"):
        train(model, **options)
    return certify_run(fpdiff.open_run(path))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_deterministic_recomputation_is_sound(tmp_path: Path, reentrant: bool) -> None:
    model = Net(lambda: 1.5, use_reentrant=reentrant)
    found = certified(tmp_path / "run", model, microbatches=2)
    assert found.verdict == "sound", found.findings
    assert found.checks[5].result == "sound"


def test_a_recomputation_that_depends_on_a_counter_is_named(tmp_path: Path) -> None:
    calls = [0]

    def factor() -> float:
        calls[0] += 1
        return float(calls[0])

    found = certified(tmp_path / "run", Net(factor))
    [finding] = found.findings
    assert (finding.check, finding.ranks, finding.steps) == ("recomputation", [0], [0, 1])
    assert "in the recomputation of module blocks.1, aten.mul (" in finding.summary
    assert "test_certified_runs.py:" in finding.summary


def test_a_dropout_that_draws_anew_is_named(tmp_path: Path) -> None:
    model = Net(lambda: 1.0, preserve_rng_state=False)
    found = certified(tmp_path / "run", model)
    [finding] = found.findings
    assert "blocks.1.drop, aten." in finding.summary
    assert "drew from another state of the generator" in finding.summary


def test_running_statistics_that_move_on_twice_are_no_finding(tmp_path: Path) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(checkpoint(self.norm, x, use_reentrant=False))  # type: ignore[no-any-return]

    assert certified(tmp_path / "run", Normed()).verdict == "sound"
