"""A compiled graph as an operator, whose inside nobody sees."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Event, Events, info, mlp, recorded, train
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Calls a compiled function that draws, and writes a buffer in place."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.zeros(4))
        self.body: Any = torch.compile(body)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x * self.weight, self.calls) * self.calls
        return result


def body(x: torch.Tensor, calls: torch.Tensor) -> torch.Tensor:
    calls += 1
    return F.dropout(torch.sin(x), 0.5)


def told(events: Events, event: Event) -> list[tuple[str, str]]:
    return [(e.kind, e.op or e.slot) for e in events.read_by(event)]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Events:
    run: Path = tmp_path_factory.mktemp("compiled") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch warns of its own while it compiles.
        bare = trained()
        with recorded(run, level="op") as events:
            assert trained() == bare
    assert info(run)["blind_spots"] == {"compiled code: its operators and kernels": 4}
    return Events(e for e in events if e.step == 1)


def trained() -> list[list[float]]:
    """Train, and return what that leaves."""
    torch.manual_seed(0)
    net = Net()
    train(net, steps=2)
    return [net.weight.tolist(), net.calls.tolist(), torch.get_rng_state().tolist()]


def test_a_graph_reads_writes_and_returns(events: Events) -> None:
    forward = events.pick(op="inductor.graph", phase="forward")
    (written,) = forward.pick(kind="written")
    first = next(iter(forward.pick(kind="result")))
    for event in (written, first):
        assert told(events, event) == [
            ("buffer", "calls"),
            ("result", "aten.mul.Tensor"),
            ("generator", "inductor.graph"),
        ]


def test_what_it_wrote_is_read_by_who_reads_it(events: Events) -> None:
    (last,) = events.pick(op="aten.mul.Tensor", phase="forward", occurrence=1, kind="result")
    assert told(events, last) == [("written", "inductor.graph"), ("result", "inductor.graph")]
    assert not events.pick(kind="input", op="aten.mul.Tensor", phase="forward", occurrence=1)


def test_the_graph_of_the_backward_reads_what_the_forward_left(events: Events) -> None:
    backward = events.pick(op="inductor.graph", phase="backward", kind="result")
    assert backward
    read = {(e.kind, e.op, e.phase) for event in backward for e in events.read_by(event)}
    assert ("result", "inductor.graph", "forward") in read
    assert ("result", "aten.mul.Tensor", "backward") in read
    assert not events.pick(kind="input", phase="backward")


@pytest.mark.parametrize("trained", [0, 3], ids=["after the model was called", "for a later phase"])
def test_an_optimizer_made_late_and_compiled_is_seen_to_step(tmp_path: Path, trained: int) -> None:
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with recorded(tmp_path / "run", level="step") as events:
            model(torch.ones(3, 4))
            if trained:
                train(model, steps=trained)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]
            train(model, steps=2, optimizer=optimizer)
    assert sorted(set(events.column("step"))) == list(range(trained + 2))
    for step in range(trained, trained + 2):
        own = events.pick(step=step)
        assert len(own.pick(kind="reduced_gradient")) == 4
        updated = own.pick(phase="optimizer", kind="parameter")
        assert len(updated) == 4
        (rate,) = own.pick(phase="init", kind="option", slot=f"optimizer{trained and 1}.group0.lr")
        assert rate.seq in updated[0].reads


def test_what_else_compiled_code_writes_ends_no_step(tmp_path: Path) -> None:
    model, average = mlp(), mlp(1)
    scale = torch.compile(lambda: torch._foreach_mul_(list(average.parameters()), 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with recorded(tmp_path / "run", level="step") as events, torch.no_grad():
            for _ in range(3):
                model(torch.ones(3, 4))
                scale()
            average(torch.ones(3, 4))
    assert set(events.column("step")) == {0}
