import copy
import gc
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Events, closure_of, hide_the_past, info, mlp, read, recorded, train
from torch import nn

import fpdiff

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def init(events: Events, kind: str, step: int = 0) -> list[tuple[str, str]]:
    return [(e.module, e.slot) for e in events.pick(kind=kind, phase="init", step=step)]


# Parameters and buffers


def test_every_step_starts_with_all_parameters(run: Path) -> None:
    with recorded(run) as events:
        train(mlp(), steps=2)
    expected = [("0", "weight"), ("0", "bias"), ("2", "weight"), ("2", "bias")]
    assert init(events, "parameter", 0) == init(events, "parameter", 1) == expected


def test_a_tied_parameter_is_recorded_once_and_read_by_both(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    with recorded(run) as events:
        train(model, steps=2)
    for step in (0, 1):
        assert init(events, "parameter", step) == [("0", "weight")]
        weight = events.one(step=step, kind="parameter", phase="init")
        for module in ("0", "2"):
            output = events.one(step=step, kind="output", module=module)
            assert weight.seq in output.reads


def test_buffers_that_no_checkpoint_holds_are_recorded_too(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].register_buffer("scratch", torch.ones(2), persistent=False)
    model[0].register_buffer("empty", None)
    with recorded(run) as events:
        train(model, steps=2)
    assert init(events, "buffer") == [
        ("0", "scratch"),
        ("1", "running_mean"),
        ("1", "running_var"),
        ("1", "num_batches_tracked"),
    ]
    scratch = events.pick(kind="buffer", slot="scratch")
    mean = events.pick(kind="buffer", slot="running_mean")
    assert scratch[0].digest == scratch[1].digest and mean[0].digest != mean[1].digest
    assert mean[0].seq in events.one(step=0, kind="output", module="1").reads


def test_a_lazy_module_is_recorded_from_when_it_is_made(run: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    with recorded(run) as events:
        model(X)
        train(model, steps=2)
    assert info(run)["finished"]
    # The optimizer was made after the module: what that starts from is what the step starts from.
    made = [("0", "weight"), ("0", "bias"), ("1", "weight"), ("1", "bias")]
    assert [sorted(init(events, "parameter", step)) for step in (0, 1)] == [sorted(made)] * 2


def test_a_meta_module_is_a_blind_spot(run: Path) -> None:
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1, device="meta")])
    with recorded(run) as events:
        model[0](X)
        fpdiff.step(1)
        model[0](X)
    assert info(run)["finished"] and len(init(events, "parameter")) == 2


def test_a_module_that_changes_its_parameters_is_recorded_anew(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=1)
        model[2] = nn.Linear(5, 3)
        train(model, steps=1)
    first, second = (events.pick(kind="parameter", phase="init", step=s) for s in (0, 1))
    assert [e.shape for e in first] == [(5, 4), (5,), (2, 5), (2,)]
    assert [e.shape for e in second] == [(5, 4), (5,), (3, 5), (3,)]


# Models beside the root


def test_an_averaged_copy_is_found_and_never_the_main_one(run: Path) -> None:
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    with recorded(run) as events:
        for _ in range(2):
            train(model, steps=1)
            average.update_parameters(model)
    for step in (0, 1):
        copies = [e for e in events.pick(step=step, phase="init") if e.module.startswith("~")]
        kinds = {(e.kind, e.module) for e in copies if e.kind != "training_flag"}
        assert {("parameter", "~AveragedModel.module.0")} <= kinds
        assert ("buffer", "~AveragedModel") in kinds


@pytest.mark.parametrize("level", ["step", "op"])
@pytest.mark.parametrize("copied", [True, False])
def test_a_model_made_in_the_middle_is_found_in_the_next_step(
    run: Path, level: str, copied: bool
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averages = []
    with recorded(run, level=level) as events:
        train(model, steps=4, optimizer=optimizer)
        averages.append(copy.deepcopy(model) if copied else mlp(1))
        train(model, steps=2, optimizer=optimizer)
    known = events.pick(phase="init", kind="parameter", module="~Sequential.0", slot="weight")
    assert known.column("step") == [4, 5]


def test_a_trainable_model_is_the_main_one_even_after_its_frozen_twin(run: Path) -> None:
    teacher, student = mlp().requires_grad_(False), mlp(1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with recorded(run) as events:
        with torch.no_grad():
            teacher(X)
        student(X).sum().backward()
        optimizer.step()
    assert events.pick(kind="output").column("module")[-1] == ""
    assert {e.module for e in events.pick(kind="reduced_gradient")} == {"0", "2"}


def test_a_trained_model_is_known_before_it_is_called(run: Path) -> None:
    encoder, model = nn.Linear(4, 4).requires_grad_(False), mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(run) as events:
        hidden = encoder(X)
        fpdiff.mark("hidden", hidden)
        model(hidden).sum().backward()
        optimizer.step()
    mark = events.one(kind="mark")
    assert all(e.seq < mark.seq for e in events.pick(kind="parameter", phase="init"))
    assert init(events, "parameter") == [
        ("~Linear", "weight"),
        ("~Linear", "bias"),
        *[(m, n) for m in ("0", "2") for n in ("weight", "bias")],
    ]


# Training flags and options


def test_training_flags_are_those_of_the_first_training_forward(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=1)
        model.eval()
        with torch.no_grad():
            model(X)
        model.train()
        train(model, steps=1)
        model.eval()
        train(model, steps=1)
    modes = [events.pick(slot="training", step=step) for step in range(3)]
    flags = [set(mode.column("digest")) for mode in modes]
    assert flags[0] == flags[1] and len(flags[0]) == 1 and flags[2] != flags[0]
    assert [set(mode.column("value")) for mode in modes] == [{1.0}, {1.0}, {0.0}]
    one = events.pick(kind="training_flag", step=1)
    assert one[0].seq > events.one(step=1, phase="eval", module="", kind="output").seq


def test_which_parameters_are_frozen_is_recorded(run: Path) -> None:
    model, average = mlp(), mlp()
    average.requires_grad_(False)
    first, last = model[0], model[2].get_parameter("bias")

    def freeze(step: int) -> None:
        first.requires_grad_(step != 1)
        first.get_parameter("weight").requires_grad_(step != 2)
        last.requires_grad_(step != 3)

    with recorded(run) as events:
        train(model, steps=4, each=freeze)
    assert average is not None
    own = events.pick(kind="training_flag", slot="requires_grad", module="")
    assert own.column("value") == [0, 1, 1, 1]
    assert len(set(own.column("digest"))) == 4
    (copied,) = {e.value for e in events.pick(slot="requires_grad", module="~Sequential")}
    assert copied == 4


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("foreach", [False, True])
def test_what_only_one_run_trains_follows_from_what_is_frozen(
    tmp_path: Path, level: str, foreach: bool
) -> None:
    for frozen in (False, True):
        hide_the_past()
        first, norm, last = nn.Linear(4, 4), nn.LayerNorm(4), mlp()
        nn.init.ones_(first.weight)
        nn.init.ones_(first.bias)
        model = nn.Sequential(first, norm, last)
        first.requires_grad_(not frozen)
        norm.requires_grad_(not frozen)
        torch.manual_seed(0)
        with recorded(tmp_path / str(frozen), level=level):
            optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
            train(model, steps=2, optimizer=optimizer)
    verdict = fpdiff.compare(tmp_path / "False", tmp_path / "True")
    (origin,) = verdict.origins
    assert (origin.step, origin.class_, origin.component) == (0, "state", "requires_grad")
    assert origin.evidence == ["only A trains 0.bias, 0.weight, 1.bias and 1 more"]


def test_options_are_read_when_training_begins(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with recorded(run) as events:
        train(model, steps=1, optimizer=optimizer)
        with torch.no_grad():
            model(X)
        optimizer.param_groups[0]["lr"] = 0.25
        train(model, steps=1, optimizer=optimizer)
    assert [e.value for e in events if e.slot.endswith(".lr")] == [1.0, 0.25]


@pytest.mark.parametrize("level", ["step", "layer", "op"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_model_that_was_tried_out_starts_from_what_was_made_after_it(
    tmp_path: Path, level: str, grad: bool
) -> None:
    """Optimizer, its loaded state, scaler and averaged weights are those of the first step."""
    starts = []
    for tries in (False, True):
        hide_the_past()
        model = mlp()
        with recorded(tmp_path / f"tries {tries}", level=level) as events:
            if tries:
                with torch.set_grad_enabled(grad):
                    model(X[:1])
            optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
            moments = {name: torch.ones(5, 4) for name in ("exp_avg", "exp_avg_sq")}
            loaded = {"state": {0: {"step": torch.tensor(3.0), **moments}}}
            optimizer.load_state_dict(optimizer.state_dict() | loaded)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            average = copy.deepcopy(model)
            for _ in range(2):
                optimizer.zero_grad()
                scaler.scale(model(X).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
        assert average is not None
        start = [e for e in events.pick(phase="init", step=0) if e.kind != "training_flag"]
        starts.append(sorted((e.kind, e.module, e.slot, e.digest) for e in start))
    assert starts[0] == starts[1]
    kinds = {kind for kind, *_ in starts[0]}
    assert kinds == {"parameter", "option", "optimizer_state", "scaler", "generator"}


@pytest.mark.parametrize("level", ["step", "layer", "op"])
def test_what_a_later_optimizer_starts_with_is_recorded_before_it_steps(
    run: Path, level: str
) -> None:
    """Its options, the state that it was loaded with, and tensors that it alone holds."""
    model = mlp()
    with recorded(run, level=level) as events:
        train(model, steps=3)
        master = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([*model.parameters(), master], lr=0.5, momentum=0.9)
        moment = {"state": {0: {"momentum_buffer": torch.full((5, 4), 2.0)}}}
        optimizer.load_state_dict(optimizer.state_dict() | moment)
        train(model, steps=2, optimizer=optimizer)
    for step in (3, 4):
        start = events.pick(step=step, phase="init")
        rate = start.one(kind="option", slot="optimizer1.group0.lr")
        held = start.pick(kind="optimizer_state")
        assert (rate.value, len(held)) == (0.5, 1 if step == 3 else 4)
        assert start.one(kind="master", slot="optimizer1.group0.4").shape == (2,)
        of = {"kind": "parameter", "module": "0", "slot": "weight"}
        updated = events.one(step=step, phase="optimizer", **of)
        # At the rung op it read what operators wrote, the program's own when it loaded the state.
        assert level == "op" or {rate.seq, held[0].seq} <= updated.reads


def test_another_rate_of_a_later_optimizer_is_state(tmp_path: Path) -> None:
    """It begins in the fourth step: no step that starts with a search for optimizers."""
    for rate in (0.25, 0.5):
        hide_the_past()
        model = mlp()
        with recorded(tmp_path / str(rate)):
            train(model, steps=3)
            train(model, steps=2, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
    verdict = fpdiff.compare(tmp_path / "0.25", tmp_path / "0.5")
    (origin,) = verdict.origins
    assert (origin.step, origin.class_) == (3, "state")
    assert origin.slot == "optimizer1.group0.lr"


def test_options_of_every_group_are_recorded(run: Path) -> None:
    model = mlp()
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters(), "lr": torch.tensor(0.5)},
        {"params": model[2].parameters(), "betas": (0.8, 0.9), "name": "head"},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.125, foreach=False)
    with recorded(run) as events:
        train(model, steps=1, optimizer=optimizer)
    options = {e.slot: e for e in events.pick(kind="option")}
    assert options["optimizer0.group0.lr"].value == 0.5
    assert options["optimizer0.group1.lr"].value == 0.125
    assert options["optimizer0.group0.betas"].digest != options["optimizer0.group1.betas"].digest
    assert "optimizer0.group1.name" in options and "optimizer0.group0.params" not in options
    assert list(options) == sorted(options)


# Optimizer state


def _trained(steps: int) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, steps=steps, optimizer=optimizer)
    return model, optimizer


def test_state_restored_in_another_order_has_the_same_structure(run: Path) -> None:
    model, optimizer = _trained(1)
    with recorded(run):
        train(model, steps=1, optimizer=optimizer)
    del model, optimizer
    model, optimizer = _trained(1)
    saved = copy.deepcopy(optimizer.state_dict())
    for key, entry in saved["state"].items():
        saved["state"][key] = dict(reversed(entry.items()))
    saved["param_groups"] = [dict(reversed(group.items())) for group in saved["param_groups"]]
    optimizer.load_state_dict(saved)
    other = run.with_name("other")
    with recorded(other):
        train(model, steps=1, optimizer=optimizer)
    assert fpdiff.compare(run, other).verdict == "identical"


def test_missing_state_shows(run: Path) -> None:
    model, optimizer = _trained(1)
    with recorded(run) as events:
        train(model, steps=1, optimizer=optimizer)
    assert len(init(events, "optimizer_state")) == 12
    optimizer.state.clear()
    with recorded(run.with_name("other")) as events:
        train(model, steps=1, optimizer=optimizer)
    assert init(events, "optimizer_state") == []


def test_looking_adds_nothing_to_the_state(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert isinstance(optimizer.state, defaultdict)
    with recorded(run):
        train(model, steps=2, optimizer=optimizer)
    assert len(optimizer.state) == 0 or all(optimizer.state.values())


# Gradient scaler


def _scaled(model: nn.Module, scaler: torch.amp.GradScaler, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(X).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def test_the_scalers_state_is_recorded(run: Path) -> None:
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    with recorded(run) as events:
        _scaled(model, scaler)
    found = events.pick(kind="scaler")
    assert found.names("step", "slot", "value") == [
        (0, "scaler0.scale", 8.0),
        (0, "scaler0.growth_tracker", 0.0),
        (1, "scaler0.scale", 16.0),
        (1, "scaler0.growth_tracker", 0.0),
    ]
    assert found[2].seq in events.one(step=1, kind="loss").reads


def test_a_scaler_that_is_switched_off_is_none(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        _scaled(model, torch.amp.GradScaler("cpu", enabled=False))
    assert events.pick(kind="scaler") == []


# Generators


def test_generators_are_recorded_at_the_start_of_each_step(run: Path) -> None:
    def draw(step: int) -> None:
        if step == 1:
            torch.rand(1)

    with recorded(run) as events:
        train(mlp(), steps=3, each=draw)
    names = ["python", "numpy", "torch.cpu"]
    for step in range(3):
        assert events.pick(kind="generator", step=step).column("slot") == names
    states = events.pick(kind="generator", slot="torch.cpu").column("digest")
    # A step opens with its first forward, after what the script drew for it.
    assert states[0] != states[1] == states[2]


def test_state_is_recorded_at_both_rungs(run: Path) -> None:
    found: list[Any] = []
    for level in ("step", "layer"):
        model = mlp()
        with recorded(run.with_name(level), level=level):
            train(model, optimizer=torch.optim.Adam(model.parameters()))
        events = read(run.with_name(level))
        state = [e for e in events if e.phase == "init" and e.kind != "generator"]
        found.append([(e.where, e.digest) for e in state])
        del model
    assert found[0] == found[1]


def test_what_is_out_of_use_leaves_the_record_whenever_it_is_collected(tmp_path: Path) -> None:
    def program(run: Path, *, collects: bool) -> None:
        hide_the_past()
        torch.manual_seed(0)
        with fpdiff.record(run):
            for _ in range(3):
                model = mlp()
                model.itself = [model]  # type: ignore[assignment]  # Only the collector frees it.
                train(model, steps=3)
                del model
                if collects:
                    gc.collect()

    gc.disable()
    try:
        program(tmp_path / "late", collects=False)
        program(tmp_path / "soon", collects=True)
    finally:
        gc.enable()
    verdict = fpdiff.compare(tmp_path / "late", tmp_path / "soon")
    assert verdict.verdict == "identical", verdict.summary


# Options that are set between the forward and the optimizer's step


def adamw(model: nn.Module, **options: Any) -> torch.optim.AdamW:
    two = list(model.parameters())
    groups = [{"params": two[:2]}, {"params": two[2:]}]
    return torch.optim.AdamW(groups, **({"lr": 0.1, "foreach": False} | options))


def backward(model: nn.Module) -> None:
    model(X).square().mean().backward()


@pytest.mark.parametrize("level", ["step", "layer", "op"])
def test_an_option_that_is_set_late_is_recorded_and_read_by_its_groups_updates(
    run: Path, level: str
) -> None:
    model = mlp()
    optimizer = adamw(model)
    with recorded(run, level=level) as events:
        for step in range(3):
            backward(model)
            if step == 1:
                optimizer.param_groups[1]["lr"] = 0.05
            optimizer.step()
    late = events.one(phase="optimizer", kind="option")
    before = events.one(step=1, phase="init", kind="option", slot="optimizer0.group1.lr")
    after = events.one(step=2, phase="init", kind="option", slot="optimizer0.group1.lr")
    assert (late.step, late.slot, late.value) == (1, "optimizer0.group1.lr", 0.05)
    assert (late.digest, late.dtype, late.shape) == (after.digest, after.dtype, after.shape)
    assert late.digest != before.digest and late.reads == {before.seq}
    updated = events.pick(step=1, phase="optimizer", kind="parameter")
    # Whose options an op of the optimizer was given is not known at the rung op.
    of_first = level == "op"
    assert [late in events.ancestors(e) for e in updated] == [of_first, of_first, True, True]
    for gradient in events.pick(step=1, kind="reduced_gradient"):
        assert late not in events.ancestors(gradient)
    if level == "op":
        told = events.pick(step=1, phase="optimizer", kind="arguments")
        assert told and all(late.seq in e.reads for e in told)


def test_an_option_of_any_kind_is_compared_with_what_it_was(run: Path) -> None:
    model = mlp()
    optimizer = adamw(model)
    tensor = torch.tensor(0.1)
    optimizer.param_groups[0] |= {"lr": tensor, "held": [torch.ones(2)], "named": {"a": 1}}
    first, second = optimizer.param_groups
    first["betas"] = [0.9, 0.99]

    def late(step: int) -> None:
        if step == 1:
            first["betas"][1] = 0.5
            tensor.data.mul_(0.5)
            first["held"][0].mul_(2)
            first["named"]["a"] = 2
            second["maximize"] = True
            second["eps"] = 1e-6
        if step == 2:  # The same values, by other objects.
            first["betas"] = [0.9, 0.5]
            first["lr"] = tensor.clone()
            first["named"] = {"a": 2}
            second["weight_decay"] = float(second["weight_decay"])
        if step == 3:
            del second["maximize"]
            second["new"] = 1

    with recorded(run) as events:
        for step in range(4):
            backward(model)
            late(step)
            if step == 3:
                second["maximize"] = False
            optimizer.step()
    found = events.pick(phase="optimizer", kind="option")
    slots = ["group0.betas", "group0.held.0", "group0.lr", "group0.named"]
    slots += ["group1.eps", "group1.maximize"]
    assert found.names("step", "slot") == [
        *((1, f"optimizer0.{slot}") for slot in slots),
        (3, "optimizer0.group1.maximize"),
    ]
    assert found.pick(slot="optimizer0.group0.lr")[0].value == pytest.approx(0.05)


def test_each_step_of_an_optimizer_within_a_step_has_its_options(run: Path) -> None:
    model = mlp()
    optimizer = adamw(model)
    with recorded(run) as events:
        for step in range(2):
            fpdiff.step(step)
            backward(model)
            for _ in range(3):
                optimizer.step()
                optimizer.param_groups[0]["lr"] *= 0.5
    found = events.pick(phase="optimizer", kind="option")
    assert found.names("step", "occurrence", "value") == [
        *((0, 0, 0.05), (0, 1, 0.025)),
        *((1, 0, 0.1 / 16), (1, 1, 0.1 / 32)),
    ]
    first, second = found.pick(step=0)
    assert second.reads == {first.seq}


def test_a_scheduler_that_steps_early_disturbs_nothing(tmp_path: Path) -> None:
    def end(path: Path | None) -> list[bytes]:
        hide_the_past()
        model = mlp()
        optimizer = adamw(model, lr=torch.tensor(0.1))
        with recorded(path) if path else nullcontext():
            for _ in range(3):
                backward(model)
                with torch.no_grad():
                    for group in optimizer.param_groups:
                        group["lr"].mul_(0.7)
                optimizer.step()
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    assert end(None) == end(tmp_path / "a") == end(tmp_path / "b")
    assert fpdiff.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"


def test_an_option_set_before_a_closure_is_what_the_closures_step_starts_from(run: Path) -> None:
    model = mlp()
    optimizer = adamw(model)

    closure = closure_of(model, optimizer, X)
    with recorded(run) as events:
        for _ in range(3):
            optimizer.step(closure)
            optimizer.param_groups[0]["lr"] *= 0.5
    rates = events.pick(kind="option", slot="optimizer0.group0.lr")
    assert rates.names("step", "phase", "value") == [
        (0, "init", 0.1),
        (1, "init", 0.05),
        (2, "init", 0.025),
    ]
