"""What fpdiff says of idioms of training loops: no more findings than causes, no false claim."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import hide_the_past
from torch import nn
from torch.nn.functional import mse_loss
from verdicts import only

import fpdiff
from fpdiff.fingerprint.bisect.verdict import Origin, Verdict

X = torch.arange(48.0).view(6, 8).sin()


def judged(path: Path, level: str, program: Callable[[bool], object]) -> Verdict:
    """Return the verdict on a program as it is and changed, after one on twins of it."""
    for arm, is_changed in (("a", False), ("twin", False), ("b", True)):
        hide_the_past()
        torch.manual_seed(0)
        with fpdiff.record(path / arm, level=level):
            program(is_changed)
    twins = fpdiff.compare(path / "a", path / "twin")
    assert twins.verdict == "identical", twins.summary
    return fpdiff.compare(path / "a", path / "b")


def first_of_groups(verdict: Verdict) -> list[Origin]:
    return [verdict.origins[group.origins[0]] for group in verdict.groups]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def climbing(is_changed: bool) -> None:
    """Look for a sharper place of the loss before each step, and come back."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(X).square().mean().backward()
        with torch.no_grad():
            rate = 0.1 if is_changed and step == 1 else 0.05
            ways = [p.grad.mul(rate) for p in model.parameters() if p.grad is not None]
            torch._foreach_add_(list(model.parameters()), ways)
        optimizer.zero_grad()
        model(X).square().mean().backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), ways)
        optimizer.step()
        optimizer.zero_grad()


def test_a_parameter_written_within_a_step_is_no_unseen_write(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "layer", climbing)
    origin = verdict.origins[0]
    assert (origin.step, origin.microbatch, origin.phase) == (1, 1, "forward")
    assert (origin.module, origin.kind, origin.slot) == ("0", "rewrite", "weight")
    assert origin.class_ == "computation" and "as the step wrote it" in origin.summary
    assert origin.hint is not None and "in the middle of the step" in origin.hint


def temperature(is_changed: bool) -> None:
    """Train a number that is no module's, which the loss is made with."""
    model, scale = net(), nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    for step in range(3):
        (model(X).square() * scale.exp()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            scale.clamp_(max=1.0 if is_changed and step == 1 else 5.0)


def test_a_loss_may_read_what_is_trained_alone(tmp_path: Path) -> None:
    origin = only(judged(tmp_path, "layer", temperature))
    assert (origin.step, origin.class_, origin.component) == (2, "state", "master weights")


def ensemble(is_changed: bool) -> None:
    """Train tensors that no module holds, at a rate that differs."""
    weight = nn.Parameter(torch.ones(8, 4) / 8)
    layer = nn.Tanh()
    optimizer = torch.optim.SGD([weight], lr=0.2 if is_changed else 0.1)
    for _ in range(3):
        layer(X @ weight).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["step", "layer", "op"])
def test_what_no_module_holds_counts_among_what_is_trained(tmp_path: Path, level: str) -> None:
    verdict = judged(tmp_path, level, ensemble)
    assert only(verdict).slot == "optimizer0.group0.lr"
    assert (verdict.effects.loss, verdict.effects.parameters) == (1, 0)


def teaching(is_changed: bool) -> None:
    """Let a frozen teacher evaluate, in one run in training mode."""
    teacher = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
    teacher.requires_grad_(False).train(is_changed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with torch.no_grad():
            taught = teacher(X)
        mse_loss(model(X), taught).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["layer", "op"])
def test_a_teacher_in_training_mode_is_told_as_its_flag(tmp_path: Path, level: str) -> None:
    verdict = judged(tmp_path, level, teaching)
    [origin] = first_of_groups(verdict)
    assert (origin.step, origin.class_) == (0, "state")
    assert origin.component in ("training flag", "training flag of a module outside the root")
    assert origin.hint is not None and "train() or eval()" in origin.hint


def averaging(is_changed: bool) -> None:
    """Average a model with its batch norms, in one run a step later."""
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    mean = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(X).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= (2 if is_changed else 1):
            mean.load_state_dict(model.state_dict())


def test_buffers_of_one_copy_are_one_group(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "layer", averaging)
    assert [origin.kind for origin in first_of_groups(verdict)] == ["parameter", "buffer"]
    assert len(verdict.groups[1].members) == 3


def sparse(is_changed: bool) -> None:
    """Train an embedding with sparse gradients, at a rate that differs."""
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.2 if is_changed else 0.1)
    for _ in range(2):
        model(torch.tensor([1, 3, 3])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_an_op_reads_the_parts_of_a_sparse_tensor(tmp_path: Path) -> None:
    assert only(judged(tmp_path, "op", sparse)).slot == "optimizer0.group0.lr"


def working_otherwise(is_changed: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True, foreach=is_changed)
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_ops_that_an_option_decides_follow_from_it(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "op", working_otherwise)
    assert only(verdict).slot == "optimizer0.group0.foreach"
    assert verdict.effects.parameters is None


class Tied(nn.Module):
    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        weight = self.table.weight
        self.head.weight = weight if is_tied else nn.Parameter(weight.detach().clone())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.table(tokens)))
        return out


def tied(is_changed: bool) -> None:
    model = Tied(not is_changed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        model(torch.tensor([1, 3, 3])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["layer", "op"])
def test_the_gradient_of_a_lone_parameter_follows_from_it(tmp_path: Path, level: str) -> None:
    verdict = judged(tmp_path, level, tied)
    origin, *others = first_of_groups(verdict)
    assert (origin.class_, origin.component) == ("state", "parameter")
    assert origin.evidence == ["it holds the bits of table.weight in B: is it tied to that in A?"]
    # What it adds to the other's gradient in A.
    assert [o.op for o in others] == (["aten.add.Tensor"] if level == "op" else [])


class Norm(nn.Module):
    def __init__(self, is_single: bool) -> None:
        super().__init__()
        self.is_single = is_single
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x if self.is_single else x.double()
        scale = torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * (y * scale).type_as(x)


def island(is_changed: bool) -> None:
    """Normalize in double precision, in one run in single."""
    model = nn.Sequential(nn.Linear(8, 8), Norm(is_changed), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_backward_of_another_forward_follows_from_it(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "op", island)
    found = first_of_groups(verdict)
    assert {(o.phase, o.module) for o in found} == {("forward", "1")}
    assert len(found) <= 3 and found[0].op == "aten._to_copy.default"


def clamped(is_changed: bool) -> None:
    """Change a gradient in the backward alone: no forward explains it."""
    model, last = net(), nn.Linear(4, 4)
    model.append(last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_changed:
        last.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_an_op_of_the_backward_alone_is_told(tmp_path: Path) -> None:
    origin = only(judged(tmp_path, "op", clamped))
    assert (origin.phase, origin.module, origin.op) == ("backward", "3", "aten.clamp.default")


def regrouped(is_changed: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    own = [p for n, p in model.named_parameters() if p.ndim > 1 or (is_changed and n == "1.weight")]
    rest = [p for p in model.parameters() if not any(p is q for q in own)]
    groups = [{"params": own, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["layer", "op"])
def test_a_parameter_in_another_group_is_told_before_the_order(tmp_path: Path, level: str) -> None:
    first, second = first_of_groups(judged(tmp_path, level, regrouped))
    assert (first.step, first.phase, first.module) == (0, "optimizer", "1")
    assert first.class_ == "structure" and first.hint is not None and "groups" in first.hint
    if level == "layer":
        assert first.summary.endswith(
            "was made from other things: in A it read the options of optimizer0.group1"
            " (weight_decay 0), in B it read the options of optimizer0.group0 (weight_decay 0.1)"
        )
    assert second.summary.endswith("comes at another place of the step in B than in A")
    assert second.hint is not None and "in another order" in second.hint


class Judging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        out = self.layer(x)
        return out, None if labels is None else (out - labels).square().mean()


def judging(is_changed: bool) -> None:
    """Let the model compute its loss, in one run the trainer."""
    model, labels = Judging(), torch.ones(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        if is_changed:
            loss = mse_loss(model(X)[0], labels * 2)
        else:
            loss = model(X, labels)[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_a_model_does_with_an_argument_follows_from_it(tmp_path: Path) -> None:
    first, *others = first_of_groups(judged(tmp_path, "op", judging))
    assert (first.phase, first.kind, first.slot) == ("forward", "input", "arg.1")
    assert not [o for o in others if o.phase == "forward"]


def looking_ahead(is_changed: bool) -> None:
    """Adapt the weights by one step, and train through it, in one run to the first order."""
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        own: dict[str, torch.Tensor] = dict(model.named_parameters())
        loss = torch.func.functional_call(model, own, (X,)).square().mean()
        ways = torch.autograd.grad(loss, list(own.values()), create_graph=not is_changed)
        ahead = {n: p - 0.1 * way for (n, p), way in zip(own.items(), ways, strict=True)}
        torch.func.functional_call(model, ahead, (X.flip(0),)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_gradient_that_is_whole_elsewhere_is_trained_in_both_runs(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "layer", looking_ahead)
    assert (verdict.first_step, verdict.origins[0].phase) == (0, "backward")
    for origin in verdict.origins:
        assert origin.hint is None or "only one run trains" not in origin.hint
