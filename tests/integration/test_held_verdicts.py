"""What fpdiff says of state that a program holds otherwise, and models that it calls otherwise."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import hide_the_past
from torch import nn
from verdicts import only, place

import fpdiff


@pytest.mark.parametrize("level", ["layer", "op"])
def test_parameter_groups_in_another_order_change_no_parameter(tmp_path: Path, level: str) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        weights = [p for p in model.parameters() if p.dim() > 1]
        groups: list[dict[str, Any]] = [
            {"params": weights, "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups if arm == "A" else groups[::-1], lr=0.01)
        with fpdiff.record(tmp_path / arm, level=level):
            for _ in range(3):
                model(torch.ones(6, 8)).square().mean().backward()
                optimizer.step()
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    assert (verdict.effects.loss, verdict.effects.parameters) == (None, None)
    assert [(o.kind, o.class_) for o in verdict.origins[:2]] == [("option", "state")] * 2
    (moved,) = verdict.origins[2:]
    assert (moved.phase, moved.class_) == ("optimizer", "structure")


@pytest.mark.parametrize("change", ["earlier", "once more", "of no use"])
def test_an_average_that_is_written_otherwise_is_told_where_it_is_written(
    tmp_path: Path, change: str
) -> None:
    def average(arm: str, step: int, when: str) -> None:
        usual = "before" if (arm, change) == ("B", "earlier") else "after"
        with torch.no_grad():
            for mean, parameter in zip(means.parameters(), model.parameters(), strict=True):
                if when == usual or (arm, step, change) == ("B", 1, "once more"):
                    mean.lerp_(parameter, 0.1)
                elif (arm, change) == ("B", "of no use"):
                    mean.lerp(parameter, 0.1)

    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        means = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fpdiff.record(tmp_path / arm, level="op"):
            for step in range(4):
                model(torch.ones(6, 8)).square().mean().backward()
                average(arm, step, "before")
                optimizer.step()
                average(arm, step, "after")
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    if change == "of no use":
        assert verdict.verdict == "identical"
        return
    assert {o.op for o in verdict.origins} == {"aten.lerp_.Scalar"}
    assert place(verdict.origins[0]) == (1, "other", "", "aten.lerp_.Scalar", "structure")
    how = "only in B" if change == "once more" else "comes at another place"
    assert how in verdict.origins[0].summary


class Picks(torch.autograd.Function):
    """The first columns; its backward leaves the gradient of the others as malloc gave it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, garbage: float) -> torch.Tensor:
        ctx.shape, ctx.garbage = x.shape, garbage
        return x[:, :12].clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        out = torch.empty(ctx.shape)
        out.numpy()[:] = ctx.garbage
        out[:, :12] = grads[0]
        return out, None


class Picking(nn.Module):
    """Picks columns, with other garbage in each arm."""

    def __init__(self, arm: str) -> None:
        super().__init__()
        self.garbage = 1.0 if arm == "A" else 2.0

    def forward(self, x: torch.Tensor) -> Any:
        return Picks.apply(x, self.garbage)  # type: ignore[no-untyped-call]


def test_a_gradient_that_is_written_in_part_is_uninitialised(tmp_path: Path) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), Picking(arm), nn.Linear(12, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fpdiff.record(tmp_path / arm, level="op"):
            for _ in range(2):
                model(torch.ones(6, 8)).square().mean().backward()
                optimizer.step()
    origin = only(fpdiff.compare(tmp_path / "A", tmp_path / "B"))
    assert place(origin) == (0, "backward", "1", None, "uninitialised")


class Tried(nn.Module):
    """Tries a part of itself in its constructor, to know a size."""

    def __init__(self, *, with_grad: bool = False, tries: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        with torch.set_grad_enabled(with_grad):
            size = self.conv(torch.zeros(1, 2, 8)).numel() if tries else 18
        self.out = nn.Linear(size, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(x).tanh().flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("with_grad", [True, False])
def test_a_part_that_was_tried_in_a_constructor_is_not_the_root(
    tmp_path: Path, level: str, with_grad: bool
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        with fpdiff.record(tmp_path / arm, level=level):
            torch.manual_seed(0)
            model = Tried(with_grad=with_grad)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                optimizer.zero_grad()
                model(torch.ones(4, 2, 8)).sum().backward()
                with torch.no_grad():
                    model.out.bias.add_(float((arm, step) == ("B", 1)))
                optimizer.step()
    origin = fpdiff.compare(tmp_path / "A", tmp_path / "B").origins[0]
    found = (1, "other") if level == "op" else (1, "optimizer")
    assert (origin.step, origin.phase) == found
    sites = fpdiff.open_run(tmp_path / "A").ranks[0].sites().to_pylist()
    modules = {site["module"] for site in sites if site["phase"] in ("forward", "backward")}
    assert modules <= {"", "conv", "out"}
    updated = [s for s in sites if (s["kind"], s["phase"]) == ("parameter", "optimizer")]
    places = {(site["module"], site["slot"]) for site in updated}
    assert places == {(m, n) for m in ("conv", "out") for n in ("weight", "bias")}


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("tries", ["A", "B"])
@pytest.mark.parametrize("differs", [False, True])
def test_a_part_that_one_run_tried_in_a_constructor_is_no_difference(
    tmp_path: Path, level: str, tries: str, differs: bool
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        with fpdiff.record(tmp_path / arm, level=level):
            torch.manual_seed(int(differs and arm == "B"))
            model = Tried(tries=arm == tries)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, 2, 8)).sum().backward()
                optimizer.step()
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    if differs:
        told = [(o.step, o.module, o.slot, o.summary.split()[-1]) for o in verdict.origins]
        assert (0, "conv", "weight", "differs") in told
        assert not any(module == "" and slot == "weight" for _, module, slot, _ in told)
    else:
        assert verdict.verdict == "identical" and verdict.effects.parameters is None


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_what_a_resumed_optimizer_was_loaded_with_after_its_model_was_tried_out(
    tmp_path: Path, level: str, is_lost: bool
) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(6, 8)).square().sum().backward()
            optimizer.step()

    hide_the_past()
    torch.manual_seed(0)
    with fpdiff.record(tmp_path / "A", level=level):
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        train(model, optimizer, 2)
        kept = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        train(model, optimizer, 2)
    hide_the_past()
    with fpdiff.record(tmp_path / "B", level=level, first_step=2):
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        model.load_state_dict(kept[0])
        with torch.no_grad():
            model(torch.ones(1, 8))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for entry in kept[1]["state"].values() if is_lost else ():
            entry["exp_avg"].zero_()
        optimizer.load_state_dict(kept[1])
        train(model, optimizer, 2)
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    assert verdict.verdict == ("diverged" if is_lost else "identical")
    assert {(o.step, o.component, o.slot.split(".")[1]) for o in verdict.origins} == (
        {(2, "optimizer state", "exp_avg")} if is_lost else set()
    )


@pytest.mark.parametrize("level", ["layer", "op"])
def test_two_models_that_train_in_another_order_are_no_other_weights(
    tmp_path: Path, level: str
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        models = nn.Sequential(nn.Linear(8, 4), nn.Tanh()), nn.Sequential(nn.Linear(8, 2))
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        with fpdiff.record(tmp_path / arm, level=level):
            for _ in range(3):
                for n in (0, 1) if arm == "A" else (1, 0):
                    models[n](torch.ones(6, 8)).square().mean().backward()
                    optimizers[n].step()
    origin = only(fpdiff.compare(tmp_path / "A", tmp_path / "B"))
    assert (origin.step, origin.class_) == (0, "structure")
    assert origin.summary.endswith("the root module of A is ~Sequential in B")


@pytest.mark.parametrize("level", ["layer", "op"])
def test_a_metric_that_one_run_alone_computes_first_hides_no_option(
    tmp_path: Path, level: str
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        with fpdiff.record(tmp_path / arm, level=level):
            for step in range(5):
                if (arm, step) == ("B", 3):
                    nn.MSELoss()(torch.ones(2), torch.zeros(2))
                model(torch.ones(6, 8)).square().mean().backward()
                optimizer.step()
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    assert not [o for o in verdict.origins if o.phase == "init"]
    assert verdict.effects.parameters is None
