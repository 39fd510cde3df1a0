from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Events, closure_of, hide_the_past, mlp, recorded, train
from torch import nn

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def test_a_step_ends_with_gradients_then_what_was_made_of_them(run: Path) -> None:
    model = mlp()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    with recorded(run) as events:
        train(model, steps=1, optimizer=adam)
    kinds = [(e.kind, e.module, e.slot) for e in events.pick(phase="optimizer") if e.module == "0"]
    assert kinds == [
        ("reduced_gradient", "0", "grad.weight"),
        ("reduced_gradient", "0", "grad.bias"),
        ("parameter", "0", "weight"),
        ("optimizer_state", "0", "weight.exp_avg"),
        ("optimizer_state", "0", "weight.exp_avg_sq"),
        ("optimizer_state", "0", "weight.step"),
        ("parameter", "0", "bias"),
        ("optimizer_state", "0", "bias.exp_avg"),
        ("optimizer_state", "0", "bias.exp_avg_sq"),
        ("optimizer_state", "0", "bias.step"),
    ]


def test_an_updated_parameter_reads_all_that_its_update_took(run: Path) -> None:
    model = mlp()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    with recorded(run) as events:
        train(model, steps=2, optimizer=adam)
    step = Events(e for e in events if e.step == 1)
    updated = step.one(phase="optimizer", kind="parameter", module="0", slot="weight")
    sources = {(e.phase, e.kind, e.slot) for e in step.read_by(updated)}
    assert {
        ("init", "parameter", "weight"),
        ("init", "optimizer_state", "weight.exp_avg"),
        ("init", "option", "optimizer0.group0.lr"),
        ("optimizer", "reduced_gradient", "grad.weight"),
    } <= sources
    assert ("init", "optimizer_state", "bias.exp_avg") not in sources


def test_what_a_step_leaves_is_what_the_next_starts_from(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=3, optimizer=torch.optim.Adam(model.parameters()))
    for kind in ("parameter", "optimizer_state"):
        for step in (0, 1):
            left = events.pick(step=step, phase="optimizer", kind=kind)
            start = events.pick(step=step + 1, phase="init", kind=kind)
            assert sorted(e.digest for e in left) == sorted(e.digest for e in start)


def test_a_clipped_gradient_is_seen_as_the_optimizer_sees_it(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(run) as events:
        model(X).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    local = events.one(kind="local_gradient", module="0", slot="grad.weight")
    reduced = events.one(kind="reduced_gradient", module="0", slot="grad.weight")
    assert local.digest != reduced.digest and local.seq in reduced.reads


def test_the_norm_that_gradients_are_clipped_by_is_a_metric(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    with recorded(run) as events:
        for _ in range(2):
            model(X).sum().backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
            optimizer.step()
    found = events.pick(kind="metric", slot="grad_norm")
    assert [(e.step, e.value) for e in found] == list(enumerate(norms))


def test_a_norm_outside_of_any_step_is_nobodys(run: Path) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with recorded(run) as events:
        nn.utils.clip_grad_norm_([weight], 0.01)
        mlp()(X).sum().backward()
    assert events.pick(kind="metric") == []


def test_two_optimizers_belong_to_one_step(run: Path) -> None:
    model, head = mlp(), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(head.parameters())]
    with recorded(run) as events:
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            head(model(X)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert {e.step for e in events} == {0, 1}
    for step in (0, 1):
        updated = events.pick(step=step, phase="optimizer", kind="parameter")
        assert [e.module for e in updated] == ["0", "0", "2", "2", "~Linear", "~Linear"]
    options = {e.slot.split(".")[0] for e in events.pick(kind="option")}
    assert options == {"optimizer0", "optimizer1"}


def test_optimizers_that_take_turns_make_steps_of_their_own(run: Path) -> None:
    generator, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.SGD(generator.parameters(), 0.1)
    second = torch.optim.SGD(judge.parameters(), 0.1)
    with recorded(run) as events:
        for _ in range(2):
            judge(generator(X).detach()).sum().backward()
            second.step()
            judge(generator(X)).sum().backward()
            first.step()
    updated = events.pick(phase="optimizer", kind="parameter", slot="weight")
    assert updated.names("step", "module") == [(0, "~Linear"), (1, ""), (2, "~Linear"), (3, "")]


def test_a_closure_computes_gradients_inside_the_step(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    closure = closure_of(model, optimizer, X)
    with recorded(run) as events:
        optimizer.step(closure)
        optimizer.step(closure=closure)
    for step in (0, 1):
        kinds = [e.kind for e in events if e.step == step]
        assert len(events.pick(step=step, kind="reduced_gradient")) == 4
        last = len(kinds) - 1 - kinds[::-1].index("loss")
        assert kinds.index("reduced_gradient") > last
        assert len(events.pick(step=step, kind="loss")) >= 2
    assert {e.step for e in events} == {0, 1}


def test_what_an_optimizer_does_after_its_closure_is_its_own(run: Path) -> None:
    model = mlp()
    adam = torch.optim.Adam(model.parameters(), foreach=False)
    with recorded(run, level="op") as events:
        for _ in range(3):
            adam.step(closure_of(model, adam, X))
    updates = events.pick(kind="written", op="aten.addcdiv_.default")
    assert set(updates.names("phase", "module")) == {("optimizer", "0"), ("optimizer", "2")}
    for step in (0, 1, 2):
        assert len(updates.pick(step=step)) == 4
        assert {e.phase for e in events.pick(step=step, op="aten.pow.Tensor_Scalar")} == {
            "other",
            "backward",
        }


def test_a_closure_that_raised_is_over(run: Path) -> None:
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def broken() -> float:
        model(X)
        raise KeyError

    with recorded(run, level="op") as events:
        with pytest.raises(KeyError):
            sgd.step(broken)
        model(X).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
        sgd.step()
    clips = events.pick(op="aten.mul_.Tensor")
    assert clips and {e.phase for e in clips} == {"other"}


def test_a_parameter_written_in_the_middle_of_a_step_is_recorded_again(run: Path) -> None:
    """By a closure's optimizer, or one that looks ahead as this one does."""
    model = mlp()

    def look_ahead(by: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=by)

    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(run) as events:
        for _ in range(2):
            model(X).square().mean().backward()
            look_ahead(0.5)
            sgd.zero_grad(set_to_none=False)
            model(X).square().mean().backward()
            look_ahead(-0.5)
            sgd.step()
    for step in (0, 1):
        rewritten = events.pick(step=step, kind="rewrite")
        assert sorted(rewritten.names("module", "slot")) == [
            (module, name) for module in ("0", "2") for name in ("bias", "weight")
        ]
        first, second = events.pick(step=step, kind="output", module="0")
        assert {e.seq for e in rewritten.pick(module="0")} <= second.reads
        assert not {e.seq for e in rewritten} & first.reads
        gradients = events.pick(step=step, kind="local_gradient", microbatch=0)
        assert len(gradients) == 4
        for event in rewritten:
            assert {e.seq for e in gradients} <= event.reads


def test_masters_that_only_the_optimizer_holds_are_recorded(run: Path) -> None:
    model = mlp().to(torch.bfloat16)
    masters = [p.detach().float() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    with recorded(run) as events:
        for _ in range(2):
            model.zero_grad()
            model(X.bfloat16()).sum().backward()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
    slots = [f"optimizer0.group0.{i}" for i in range(4)]
    for step in (0, 1):
        for phase in ("init", "optimizer"):
            found = events.pick(step=step, kind="master", phase=phase)
            assert [(e.module, e.slot, e.dtype) for e in found] == [
                ("", s, "float32") for s in slots
            ]
    state = events.pick(step=1, kind="optimizer_state", phase="init")
    assert state.column("slot") == [f"{slot}.momentum_buffer" for slot in slots]
    gradients = events.pick(step=1, kind="reduced_gradient")
    assert gradients.column("slot") == [f"grad.{slot}" for slot in slots]


def test_a_parameter_without_gradient_is_left_out_of_the_gradients(run: Path) -> None:
    class Skips(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[0](x)  # type: ignore[no-any-return]

    with recorded(run) as events:
        train(Skips(*mlp()), steps=1)
    assert {e.module for e in events.pick(kind="reduced_gradient")} == {"0"}
    assert len(events.pick(kind="parameter", phase="optimizer")) == 4


def test_an_optimizer_that_steps_before_any_module_is_not_recorded(run: Path) -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    with recorded(run) as events:
        w.grad = torch.ones(3)
        optimizer.step()
        mlp()(X)
    assert {e.step for e in events} == {0}


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_every_implementation_is_seen(run: Path, how: dict[str, bool]) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, optimizer=torch.optim.AdamW(model.parameters(), **how))  # type: ignore[arg-type]
    assert len(events.pick(kind="parameter", phase="optimizer")) == 8
    before = events.pick(kind="parameter", phase="init", step=0)
    after = events.pick(kind="parameter", phase="optimizer", step=0)
    assert all(a.digest != b.digest for a, b in zip(before, after, strict=True))


def test_a_scheduler_changes_the_rate_that_is_recorded(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def advance(step: int) -> None:
        if step:
            schedule.step()

    with recorded(run) as events:
        train(model, steps=3, optimizer=optimizer, each=advance)
    assert [e.value for e in events if e.slot.endswith(".lr")] == [1.0, 0.5, 0.25]


class _Shadow(torch.optim.Optimizer):
    """Steps without calling its parameters' kernels: keeps odd things as state."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "extra": object(), "pair": (torch.ones(2), 3)})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"list": [p.grad.clone(), None], "n": 3, "name": "x", 4: p.grad}


def test_odd_state_is_recorded_as_far_as_it_is_data(run: Path) -> None:
    model = nn.Linear(4, 1, bias=False)
    with recorded(run) as events:
        train(model, optimizer=_Shadow(model.parameters()))
    state = events.pick(step=1, phase="init", kind="optimizer_state")
    assert state.column("slot") == ["weight.4", "weight.list.0", "weight.n", "weight.name"]
    assert [e.value for e in state] == [None, None, 3.0, None]
    options = events.pick(step=0, kind="option").column("slot")
    names = [name.removeprefix("optimizer0.group0.") for name in options]
    assert names == ["lr", "pair.0"]


class Around(torch.optim.Optimizer):
    """An optimizer whose step is another one's, and what it makes of the parameters afterwards."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        self.inner.step()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(1 + parameter.grad.sum())


@pytest.mark.parametrize("level", ["layer", "op"])
def test_an_optimizer_that_runs_another_one_ends_the_step(run: Path, level: str) -> None:
    model = mlp()
    # The inner one has a part of the parameters, as where ranks share the work.
    inner = torch.optim.Adam(model[0].parameters(), lr=0.1)
    around = Around(torch.optim.Adam(model.parameters()))
    around.inner = inner
    with recorded(run, level=level) as events:
        train(model, steps=3, optimizer=around)
    assert {e.step for e in events} == {0, 1, 2}
    step = Events(e for e in events if e.step == 1)
    for module in ("0", "2"):
        updated = step.pick(phase="optimizer", kind="parameter", module=module, slot="weight")[-1]
        [gradient] = {
            e.digest for e in step.pick(kind="reduced_gradient", module=module, slot="grad.weight")
        }
        assert gradient in {e.digest for e in step.ancestors(updated)}
        assert any(e.kind == "reduced_gradient" for e in step.read_by(updated)) or level == "op"
    # What the outer one does after the inner one is of this step, and the optimizer's.
    after = step.pick(op="aten.mul_.Tensor", kind="written", phase="optimizer", module="2")
    assert len(after) == (2 if level == "op" else 0)


def test_an_inner_optimizer_that_raised_leaves_no_trace(run: Path) -> None:
    model = mlp()
    around = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    with recorded(run) as events:
        train(model, steps=1, optimizer=around)

        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        around.inner.register_step_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            around.step()
        train(model, steps=2)
    assert {e.step for e in events} == {0, 1, 2}
