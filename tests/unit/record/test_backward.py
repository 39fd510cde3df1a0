import io
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Event, Events, hide_the_past, info, mlp, recorded, train
from torch import nn

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def gradients(events: Events) -> list[tuple[str, str]]:
    return [(e.module, e.slot) for e in events.pick(kind="gradient")]


class Block(nn.Module):
    """Adds to its argument what its child makes of it."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.child(x)  # type: ignore[no-any-return]


# Where a gradient is recorded


def test_a_gradient_is_recorded_under_the_module_that_was_given_the_tensor(run: Path) -> None:
    with recorded(run) as events:
        mlp()(X).sum().backward()
    assert gradients(events) == [
        ("", "grad.2.out.0"),
        ("2", "grad.1.out.0"),
        ("1", "grad.0.out.0"),
    ]
    # It is what torch computes.
    model = mlp()
    hidden = model[0](X)
    model[2](model[1](hidden.retain_grad() or hidden)).sum().backward()
    from fpdiff.fingerprint.digest.host import digest

    assert hidden.grad is not None
    assert events.one(slot="grad.0.out.0").digest == digest(hidden.grad)


def test_containers_that_only_pass_on_do_not_count_as_consumers(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), nn.Identity())
    with recorded(run) as events:
        model(X).sum().backward()
    assert gradients(events) == [
        ("", "grad.1.1.out.0"),
        ("1.1", "grad.0.out.0"),
        ("1.0", "grad.0.out.0"),
    ]


def test_what_several_used_is_their_callers(run: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.left, self.right = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return self.left(y) * self.right(y)  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X).sum().backward()
    assert gradients(events) == [
        ("", "grad.root.out.0"),
        ("", "grad.right.out.0"),
        ("", "grad.left.out.0"),
        ("", "grad.first.out.0"),
    ]


def test_what_a_callers_own_code_used_is_the_callers(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Block(nn.Linear(4, 4)))
    with recorded(run) as events:
        model(X).sum().backward()
    assert gradients(events) == [
        ("", "grad.1.out.0"),
        ("1", "grad.child.out.0"),
        ("1", "grad.0.out.0"),
    ]


def test_gradients_of_another_root_keep_its_path(run: Path) -> None:
    model, head = mlp(), nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with recorded(run) as events:
        head(model(X)).sum().backward()
    assert gradients(events) == [
        ("", "grad.~Sequential.1.out.0"),
        ("~Sequential.1", "grad.0.out.0"),
        ("~Sequential", "grad.2.out.0"),
        ("2", "grad.1.out.0"),
        ("1", "grad.0.out.0"),
    ]


def test_a_tuple_has_a_gradient_for_each_entry(run: Path) -> None:
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * 2, {"b": x * 3}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.split = nn.Linear(4, 4), Split()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, rest = self.split(self.linear(x))
            return (a * rest["b"]).sum()  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X).backward()
    assert set(gradients(events)) >= {("", "grad.split.out.0"), ("", "grad.split.out.1.b")}


# Edges


def test_a_gradient_reads_the_pass_so_far_and_its_modules_activations(run: Path) -> None:
    with recorded(run) as events:
        train(mlp(), steps=1)
    gradient = events.one(module="1", kind="gradient")
    assert events.one(module="2", kind="gradient").seq in gradient.reads
    assert events.one(kind="loss").seq in gradient.reads
    assert events.one(module="0", kind="output").seq in gradient.reads
    weight = events.one(kind="local_gradient", module="2", slot="grad.weight")
    assert events.one(module="1", kind="output").seq in weight.reads
    assert events.one(kind="parameter", module="2", slot="weight", phase="init").seq in weight.reads
    assert events.one(module="1", kind="gradient").seq not in weight.reads


def test_a_gradient_with_many_readings_reads_a_longer_span(run: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(70))
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = sum(part(x) for part in self.parts)
            return total * self.scale

    model = Model()
    with recorded(run) as events:
        model(X).sum().backward()
    outputs = {e.seq for e in events.pick(kind="output") if e.module}
    assert outputs <= events.one(kind="local_gradient", slot="grad.scale").reads
    inner = [e for e in events.pick(kind="gradient") if "parts" in e.slot]
    assert len(inner) == 70 and all(outputs <= e.reads for e in inner)


def test_a_pass_in_a_later_step_reads_nothing_of_the_earlier_one(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(run) as events:  # Its edges are checked.
        late = model(X).sum()
        model(X).sum().backward()
        optimizer.step()
        model(X)
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            late.backward()
        optimizer.step()
    assert info(run)["finished"]
    assert events.pick(step=1, kind="loss") and events.pick(step=1, kind="gradient")


# Losses


def test_the_loss_has_its_number(run: Path) -> None:
    with recorded(run) as events:
        loss = mlp()(X).square().mean()
        loss.backward()
    event = events.one(kind="loss")
    assert event.where == ("forward", "loss", "", 0, "loss.0", 0)
    assert event.value == loss.item()


def test_several_losses_are_numbered(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        out = model(X)
        torch.autograd.backward([out[0].sum(), out[1].sum()])
    assert events.pick(kind="loss").column("slot") == ["loss.0", "loss.1"]


def test_a_loss_with_elements_has_no_number(run: Path) -> None:
    with recorded(run) as events:
        out = mlp()(X)
        out.backward(torch.ones_like(out))
    assert events.one(kind="loss").value is None
    assert events.one(kind="loss").reads == {events.one(module="", kind="output").seq}


def test_two_passes_through_one_graph_are_two_of_everything(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        loss = model(X).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for match in ({"kind": "loss"}, {"slot": "grad.0.out.0"}, {"slot": "grad.bias", "module": "0"}):
        assert [e.occurrence for e in events.pick(**match)] == [0, 1]
    once, twice = events.pick(slot="grad.bias", module="0")
    assert once.digest != twice.digest and once.seq in twice.reads


def test_autograd_grad_is_no_loss(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        torch.autograd.grad(model(X).sum(), list(model.parameters()))
    assert events.pick(kind="loss") == []
    assert len(events.pick(kind="gradient")) == 3


def test_a_gradient_penalty_is_two_passes(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = X.clone().requires_grad_()
    with recorded(run) as events:
        (inner,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        inner.square().sum().backward()
    assert len(events.pick(kind="loss")) == 1
    # The last bias has no part in the penalty.
    assert len(events.pick(kind="local_gradient")) == 3
    # The penalty was computed from what the first pass left.
    loss = events.one(kind="loss")
    gradients = Events(e for e in events.pick(kind="gradient") if e.seq < loss.seq)
    assert len(gradients) == 3
    assert {e.seq for e in gradients} <= loss.reads


def test_a_gradient_edge_is_a_blind_spot(run: Path) -> None:
    from torch.autograd.graph import get_gradient_edge

    model = mlp()
    with recorded(run) as events:
        torch.autograd.backward(get_gradient_edge(model(X).sum()))
    assert info(run)["blind_spots"] == {"backward() called on a gradient edge": 1}
    assert len(events.pick(kind="local_gradient")) == 4


def test_a_pass_without_a_model_is_not_recorded(run: Path) -> None:
    w = torch.ones(3, requires_grad=True)
    with recorded(run) as events:
        w.sum().backward()
        mlp()(X)
    assert events.pick(kind="loss") == []


def test_the_loss_reads_the_outputs_that_it_was_made_of(run: Path) -> None:
    model, other = mlp(), nn.Tanh()
    with recorded(run) as events:
        (other(X[:, :2]) * model(X)).sum().backward()
    roots = {e.seq for e in events.pick(kind="output") if e.module in ("", "~Tanh")}
    assert roots <= events.one(kind="loss").reads


# Parameters


def test_accumulated_gradients_read_what_they_were_added_to(run: Path) -> None:
    with recorded(run) as events:
        train(mlp(), steps=1, microbatches=3)
    added = events.pick(kind="local_gradient", module="0", slot="grad.weight")
    assert [e.microbatch for e in added] == [0, 1, 2]
    assert added[0].seq in added[1].reads and added[1].seq in added[2].reads
    reduced = events.one(kind="reduced_gradient", module="0", slot="grad.weight")
    assert reduced.digest == added[2].digest and added[2].seq in reduced.reads


def test_a_reduced_gradient_is_no_ranks_own(run: Path) -> None:
    """FSDP runs the hooks of a parameter when it has reduced the gradient."""
    model = mlp()
    with recorded(run) as events:
        train(model, steps=1)
        model(X).sum().backward()
        for parameter in model.parameters():
            for hook in parameter._post_accumulate_grad_hooks.values():
                hook(parameter)
    assert len(events.pick(step=1, kind="local_gradient")) == 4


def test_a_tied_weight_has_one_gradient(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    with recorded(run) as events:
        train(model, steps=1)
    gradients = [e for e in events if "gradient" in e.kind and e.slot == "grad.weight"]
    assert [(e.kind, e.module) for e in gradients] == [
        ("local_gradient", "0"),
        ("reduced_gradient", "0"),
    ]


def test_frozen_parameters_have_no_gradient(run: Path) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    with recorded(run) as events:
        train(model, steps=1)
    assert {e.module for e in events.pick(kind="local_gradient")} == {"2"}


def test_a_parameter_unfrozen_later_is_followed_from_then_on(run: Path) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(run) as events:
        train(model, steps=1, optimizer=optimizer)
        model[0].requires_grad_(True)
        train(model, steps=1, optimizer=optimizer)
    found = {(e.step, e.module) for e in events.pick(kind="local_gradient")}
    assert found == {(0, "2"), (1, "2"), (1, "0")}


def test_a_sparse_gradient_is_recorded(run: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    with recorded(run) as events:
        model(torch.tensor([1, 3, 1])).sum().backward()
    assert events.one(kind="local_gradient", module="0").shape == (5, 3)


# What the hooks must not do


def test_a_users_hooks_work_as_before(run: Path) -> None:
    def triple(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        return (inputs[0] * 3,)

    def grads(model: nn.Sequential) -> list[torch.Tensor]:
        hidden = model[0](X)
        hidden.register_hook(lambda g: g * 2)
        model[2].register_full_backward_hook(triple)
        next(model[2].parameters()).register_hook(lambda g: g + 1)
        model[2](model[1](hidden)).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    expected = grads(mlp())
    with recorded(run):
        found = grads(mlp())
    assert len(found) == 4
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_an_output_with_our_hook_can_be_saved_without_a_warning(run: Path) -> None:
    with recorded(run):
        torch.save(mlp()(X), io.BytesIO())


def test_an_output_stays_what_it_was(run: Path) -> None:
    plain = mlp()(X)
    with recorded(run):
        out = mlp()(X)
        assert type(out.grad_fn) is type(plain.grad_fn)
        assert out._version == 0 and not out._is_view()
        out.add_(1)  # Nothing of ours saved it.
        out.sum().backward()


def test_detached_outputs_are_left_alone(run: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).detach().requires_grad_()  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X).sum().backward()
    found: list[Event] = events.pick(kind="gradient")
    assert found == []
