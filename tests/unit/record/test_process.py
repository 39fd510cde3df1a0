import multiprocessing
import os
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from fpdiff.fingerprint.record.job import process
from fpdiff.fingerprint.record.job.launch import RANK_VARIABLES, launch_id, launcher_rank


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone_is_rank_0() -> None:
    assert process.rank() == 0 and process.sibling_rank() is None


@pytest.mark.parametrize("name", RANK_VARIABLES)
def test_launchers_say_the_rank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert process.rank() == process.sibling_rank() == 3


@pytest.mark.parametrize("value", ["", "x", "-1"])
def test_a_rank_that_is_none_is_none(value: str) -> None:
    assert launcher_rank({"RANK": value}) is None


def test_torch_says_the_rank_before_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert process.rank() == process.sibling_rank() == 0
    finally:
        dist.destroy_process_group()


def test_ranks_of_a_launch_agree_and_launches_differ() -> None:
    torchrun = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert launch_id(torchrun | {"RANK": "0"}) == launch_id(torchrun | {"RANK": "1"})
    assert launch_id(torchrun) != launch_id(torchrun | {"MASTER_PORT": "2"})
    slurm = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}
    assert launch_id(slurm) != launch_id(slurm | {"SLURM_STEP_ID": "1"})
    assert launch_id({}) == f"parent {os.getppid()}"


class _WorkerFlag:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bool:
        return process.is_helper()


def test_a_data_worker_knows_that_it_is_one() -> None:
    loader: DataLoader[bool] = DataLoader(
        _WorkerFlag(),  # type: ignore[arg-type]  # A map-style data set by its methods.
        num_workers=1,
        multiprocessing_context="fork",
    )
    assert [bool(flag) for flag in loader] == [True, True]
    assert not process.is_helper()


def _register(path: Path) -> None:
    def end() -> None:
        path.write_text(str(os.getpid()))

    process.at_end(end)


@pytest.mark.parametrize("method", ["fork"])
def test_a_process_of_multiprocessing_comes_to_its_end(tmp_path: Path, method: str) -> None:
    child = multiprocessing.get_context(method).Process(  # type: ignore[attr-defined]
        target=_register, args=(tmp_path / "end",)
    )
    child.start()
    child.join()
    assert (tmp_path / "end").read_text() == str(child.pid)


def _put_whether_helper(queue: "multiprocessing.SimpleQueue[bool]") -> None:
    queue.put(process.is_helper())


@pytest.mark.parametrize("daemon", [False, True])
def test_a_pools_worker_is_a_helper_and_a_process_that_may_train_is_none(daemon: bool) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_put_whether_helper, args=(queue,), daemon=daemon)
    child.start()
    assert queue.get() is daemon
    child.join()
