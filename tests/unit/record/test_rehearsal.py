"""What a library runs to learn shapes, on memory that nobody has filled, is not recorded."""

from pathlib import Path

import pytest
import torch
from recorded import hide_the_past, info, mlp, recorded, train
from torch.distributed.pipelining.stage import PipelineStage

import fpdiff
from fpdiff.fingerprint.record import current
from fpdiff.fingerprint.record.modules.rehearsal import Rehearsals


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


@pytest.mark.parametrize("level", ["layer", "op"])
def test_a_rehearsal_is_counted_and_left_out(run: Path, level: str) -> None:
    model = mlp()

    def rehearse() -> None:
        torch.autograd.grad(model(torch.empty(3, 4)).sum(), next(model.parameters()))
        raise KeyError

    with recorded(run, level=level) as events:
        assert current.script is not None
        rehearsed = Rehearsals(current.script.recorder).paused(rehearse)
        with pytest.raises(KeyError):
            rehearsed()
        train(model, steps=2)
    assert info(run)["blind_spots"] == {"rehearsal of a pipeline stage": 1}
    assert events.pick(step=0, kind="output", module="0").column("microbatch") == [0]
    assert len(events.pick(step=0, kind="gradient")) == len(events.pick(step=1, kind="gradient"))


def test_a_pipelines_methods_are_wrapped_while_recording(run: Path) -> None:
    names = ("_forward_metadata_inference", "_backward_metadata_inference")
    before = [vars(PipelineStage)[name] for name in names]
    with fpdiff.record(run):
        for name, original in zip(names, before, strict=True):
            assert vars(PipelineStage)[name].__wrapped__ is original
    assert [vars(PipelineStage)[name] for name in names] == before
