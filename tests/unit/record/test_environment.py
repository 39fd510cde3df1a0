import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from fpdiff.fingerprint.record.job.environment import describe


def test_it_is_flat_json_and_what_decides_comes_first_in_order() -> None:
    found = describe()
    assert json.loads(json.dumps(found)) == found
    deciding = [key for key in found if key.startswith("decides.")]
    assert deciding == sorted(deciding) == list(found)[: len(deciding)]


def test_versions_threads_and_flags_decide() -> None:
    found = describe()
    assert found["decides.torch"] == torch.__version__
    assert found["decides.threads"] == torch.get_num_threads()
    assert found["decides.devices"] == ["cpu"]
    assert {"decides.cpu", "decides.cpu_capability", "decides.version.numpy"} <= found.keys()


def test_a_flag_that_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert describe()["decides.deterministic_algorithms"] is True
    finally:
        torch.use_deterministic_algorithms(False)
    assert describe()["decides.deterministic_algorithms"] is False


def test_denormals_that_are_flushed_are_seen() -> None:
    before = describe()["decides.flush_denormal"]
    if not torch.set_flush_denormal(not before):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert describe()["decides.flush_denormal"] is not before
    finally:
        torch.set_flush_denormal(before)


def test_only_variables_that_decide_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("TORCH_HOME", "/somewhere")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = describe()
    assert found["decides.env.CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "decides.env.TORCH_HOME" not in found and "secret" not in json.dumps(found)


def test_without_a_process_group_the_world_is_one() -> None:
    found = describe()
    assert (found["world_size"], found["process_groups"], found["coordinates"]) == (1, [], {})


def test_a_process_group_of_one_is_a_world_of_one(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert describe()["world_size"] == 1
    finally:
        dist.destroy_process_group()


def test_megatrons_coordinates_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parallel_state = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_pipeline_model_parallel_rank=lambda: 1,
        get_tensor_model_parallel_rank=lambda: 2,
        get_context_parallel_rank=lambda: 0,
        get_data_parallel_rank=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", parallel_state)
    assert describe()["coordinates"] == {"pp": 1, "tp": 2, "cp": 0, "dp": 3}


@pytest.mark.parametrize(
    ("argv", "told"), [(["train.py", Path("config"), 5], ["train.py", "config", "5"]), (None, [])]
)
def test_a_program_may_put_anything_into_its_arguments(
    monkeypatch: pytest.MonkeyPatch, argv: list[object] | None, told: list[str]
) -> None:
    if argv is None:
        monkeypatch.delattr(sys, "argv")
    else:
        monkeypatch.setattr(sys, "argv", argv)
    assert json.loads(json.dumps(describe()))["argv"] == told
