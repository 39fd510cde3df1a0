"""What fpdiff says of differences that only ops can tell apart, and of none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import hide_the_past
from torch import nn
from torch.nn import functional as F
from verdicts import only, place

import fpdiff
from fpdiff.fingerprint.bisect.verdict import Verdict


class Net(nn.Module):
    """A small net; `twist` is called within its forward with the name of the arm."""

    def __init__(self, arm: str, twist: Callable[[str, torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4)
        self.arm, self.twist, self.calls = arm, twist, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.twist(self.arm, self.inp(x), self.calls)
        self.calls += 1
        return self.out(self.drop(h))  # type: ignore[no-any-return]


def keep(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
    return x.tanh()


def nothing(arm: str, step: int, model: nn.Module) -> None:
    return None


def record(
    path: Path,
    arm: str,
    *,
    steps: int = 4,
    twist: Callable[[str, torch.Tensor, int], torch.Tensor] = keep,
    before: Callable[[str, int, nn.Module], None] = nothing,
    after_backward: Callable[[str, int, nn.Module], None] = nothing,
    after: Callable[[str, int, nn.Module], None] = nothing,
    **options: Any,
) -> None:
    hide_the_past()
    torch.manual_seed(0)
    model = Net(arm, twist)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1)
    with fpdiff.record(path / arm, level="op", **options):
        for step in range(steps):
            x = torch.randn(6, 8, generator=data)
            y = torch.randint(4, (6,), generator=data)
            before(arm, step, model)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            after_backward(arm, step, model)
            optimizer.step()
            after(arm, step, model)


def compared(path: Path, **how: Any) -> Verdict:
    for arm in "AB":
        record(path, arm, **how)
    return fpdiff.compare(path / "A", path / "B")


def test_twins_are_identical(tmp_path: Path) -> None:
    verdict = compared(tmp_path)
    assert (verdict.verdict, verdict.notes) == ("identical", [])


def test_another_scalar_is_no_kernels_fault(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        return x.mul(1.5 if (arm, step) == ("B", 2) else 1.25)

    origin = only(compared(tmp_path, twist=twist))
    assert place(origin) == (2, "forward", "", "aten.mul.Tensor", "arguments")
    assert origin.a and origin.b and (origin.a["value"], origin.b["value"]) == (1.25, 1.5)
    assert origin.reaches[0] == "the loss"


def test_an_option_that_one_run_alone_gave_is_an_argument(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        return F.gelu(x, approximate="tanh") if (arm, step) == ("B", 1) else F.gelu(x)

    origins = compared(tmp_path, twist=twist).origins
    assert place(origins[0]) == (1, "forward", "", "aten.gelu.default", "arguments")
    assert origins[0].summary.endswith("(approximate) were given in B alone")


def test_another_slice_of_the_same_tensor_is_another_argument(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        return x + x[:, 1:2] if (arm, step) == ("B", 1) else x + x[:, 0:1]

    origin = only(compared(tmp_path, twist=twist))
    assert place(origin) == (1, "forward", "", "aten.slice.Tensor", "arguments")


@pytest.mark.parametrize(
    ("otherwise", "read"),
    [
        (
            lambda a, b, c: b - a,
            ("aten.tanh, out.0 of aten.sigmoid", "aten.sigmoid, out.0 of aten.tanh"),
        ),
        (lambda a, b, c: a - a, ["aten.sigmoid"]),
        (lambda a, b, c: a - c, ["aten.sigmoid", "aten.neg"]),
    ],
    ids=["swapped", "one twice", "another"],
)
def test_an_op_that_read_other_tensors_is_no_kernel_at_fault(
    tmp_path: Path, otherwise: Callable[..., torch.Tensor], read: list[str]
) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        a, b, c = x.tanh(), x.sigmoid(), x.neg()
        return otherwise(a, b, c) if (arm, step) == ("B", 1) else a - b

    origins = compared(tmp_path, twist=twist).origins
    (origin,) = (o for o in origins if (o.phase, o.op) == ("forward", "aten.sub.Tensor"))
    assert place(origin) == (1, "forward", "", "aten.sub.Tensor", "structure")
    for name in read:
        assert f"it read out.0 of {name}" in origin.summary


class Chooses(nn.Module):
    """Computes two things and returns the first or, in one step of B, the second."""

    def __init__(self, arm: str) -> None:
        super().__init__()
        self.lin, self.arm, self.calls = nn.Linear(8, 8), arm, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.lin(x)
        both = h.tanh(), h.sigmoid()
        self.calls += 1
        chosen: torch.Tensor = both[(self.arm, self.calls) == ("B", 2)]
        return chosen


@pytest.mark.parametrize("level", ["layer", "op"])
def test_a_module_that_returned_another_tensor_is_no_overwritten_one(
    tmp_path: Path, level: str
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(Chooses(arm), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with fpdiff.record(tmp_path / arm, level=level):
            for _ in range(3):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
    origin = fpdiff.compare(tmp_path / "A", tmp_path / "B").origins[0]
    assert (origin.step, origin.phase, origin.module) == (1, "forward", "0")
    assert origin.class_ == ("structure" if level == "op" else "computation")


def test_an_extra_draw_between_steps_is_named(tmp_path: Path) -> None:
    def before(arm: str, step: int, model: nn.Module) -> None:
        if (arm, step) == ("B", 2):
            torch.rand(1)

    origin = compared(tmp_path, before=before).origins[0]
    assert place(origin)[:4] == (2, "other", "", "aten.rand.default")
    assert origin.class_ == "structure" and "only in B" in origin.summary


def test_an_unseen_draw_is_named_where_it_first_matters(tmp_path: Path) -> None:
    def before(arm: str, step: int, model: nn.Module) -> None:
        if (arm, step) == ("B", 2):
            torch.set_rng_state(torch.Generator().manual_seed(9).get_state())

    origin = only(compared(tmp_path, before=before))
    assert place(origin) == (2, "forward", "drop", "aten.bernoulli_.float", "rng")


def test_a_layer_more_is_one_finding_and_no_flood(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        x = x.tanh()
        return F.dropout(x, 0.25) if arm == "B" else x

    verdict = compared(tmp_path, twist=twist)
    origin = only(verdict)
    assert origin.class_ == "structure" and origin.step == 0
    assert origin.op is not None and origin.phase == "forward" and origin.count > 1


def test_a_microbatch_in_front_of_the_others_is_told_as_one_more(tmp_path: Path) -> None:
    def before(arm: str, step: int, model: nn.Module) -> None:
        if (arm, step) == ("B", 1):
            model(torch.ones(6, 8)).sum().backward()

    first, *rest = compared(tmp_path, before=before).origins
    assert "1 microbatch in A and 2 in B" in first.summary
    assert (first.step, first.class_, first.slot, first.microbatch) == (1, "structure", "arg.0", 0)
    assert not rest


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("skips", ["A", "B"])
def test_a_skipped_step_is_told_before_the_rate_that_moved_on(
    tmp_path: Path, level: str, skips: str
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        with fpdiff.record(tmp_path / arm, level=level):
            for step in range(4):
                optimizer.zero_grad()
                model(torch.rand(6, 8)).sum().backward()
                if (arm, step) != (skips, 1):
                    optimizer.step()
                scheduler.step()
    first, *rest = fpdiff.compare(tmp_path / "A", tmp_path / "B").origins
    numbers = "2 microbatches in A and 1" if skips == "A" else "1 microbatch in A and 2"
    assert first.step == 1 and f"{numbers} in B" in first.summary
    assert [(o.kind, o.class_) for o in rest] == [("option", "state")]


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("fewer", ["A", "B"])
def test_a_microbatch_more_comes_before_what_follows_from_it(
    tmp_path: Path, level: str, fewer: str
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.Generator().manual_seed(1)
        with fpdiff.record(tmp_path / arm, level=level):
            for step in range(4):
                number = 3 if arm != fewer and step == 2 else 2
                for _ in range(number):
                    x = torch.randn(6, 8, generator=data)
                    y = torch.randint(4, (6,), generator=data)
                    (F.cross_entropy(model(x), y) / number).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    first, *rest = verdict.origins
    assert (first.step, first.class_, first.phase, first.microbatch) == (
        2,
        "structure",
        "forward",
        2,
    )
    numbers = {fewer: 2, "B" if fewer == "A" else "A": 3}
    assert f"{numbers['A']} microbatches in A and {numbers['B']} in B" in first.summary
    # What is left is that the losses of the others are divided by another number.
    assert {(o.phase, o.kind, o.microbatch) for o in rest} == (
        {("forward", "loss", 0), ("forward", "loss", 1)}
        if level == "layer"
        else {("other", "arguments", 0), ("other", "arguments", 1)}
    )
    assert all(o.hint is not None and "microbatches" in o.hint for o in rest)


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("more", ["A", "B"])
@pytest.mark.parametrize("draws", [False, True])
def test_a_microbatch_in_front_is_told_first_and_the_others_pair_behind_it(
    tmp_path: Path, level: str, more: str, draws: bool
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5 if draws else 0.0), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.Generator().manual_seed(1)
        with fpdiff.record(tmp_path / arm, level=level):
            for step in range(3):
                if arm == more and step == 1:
                    with torch.random.fork_rng(devices=[], enabled=not draws):
                        model(torch.ones(2, 8))
                optimizer.zero_grad()
                for _ in range(2):
                    x = torch.randn(6, 8, generator=data)
                    y = torch.randint(4, (6,), generator=data)
                    (F.cross_entropy(model(x), y) / 2).backward()
                optimizer.step()
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    first, *rest = verdict.origins
    numbers = "3 microbatches in A and 2" if more == "A" else "2 microbatches in A and 3"
    assert (first.step, first.class_, first.phase, first.microbatch) == (
        1,
        "structure",
        "forward",
        0,
    )
    assert f"{numbers} in B" in first.summary
    # What the others' dropout drew differs with what that of the first drew, and nothing else.
    assert not rest
    assert (verdict.effects.parameters is not None) == draws


def test_memory_that_nobody_wrote_is_to_blame(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        hole = torch.empty(16)
        hole.numpy()[:] = 1.0 if arm == "A" else 2.0  # What malloc happened to leave there.
        return x + hole

    origin = only(compared(tmp_path, twist=twist))
    assert place(origin) == (0, "forward", "", "aten.add.Tensor", "uninitialised")


def test_garbage_that_nobody_uses_is_no_difference(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        hole = torch.empty(16)
        hole.numpy()[:] = 1.0 if arm == "A" else 2.0
        return x + hole.fill_(0.5)

    assert compared(tmp_path, twist=twist).verdict == "identical"


@pytest.mark.parametrize("rehash", [True, False])
def test_an_unseen_write_is_not_blamed_on_the_next_op(tmp_path: Path, rehash: bool) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        y = x.mul(2)
        view = y.detach().numpy()
        if (arm, step) == ("B", 2):
            view[0, 0] += 1
        return y.tanh()

    origin = only(compared(tmp_path, twist=twist, rehash=rehash))
    assert place(origin)[:4] == (2, "forward", "", "aten.tanh.default")
    if rehash:
        assert origin.class_ == "unseen-producer"
        assert "overwritten in B" in origin.summary
    else:
        assert origin.hint is not None and "--rehash" in origin.hint
        assert "not known to vary" in origin.hint


def test_an_evaluation_that_left_something_comes_first(tmp_path: Path) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with fpdiff.record(tmp_path / arm, level="op"):
            for step in range(4):
                x = torch.full((6, 8), 0.1 * step)
                if (arm, step) == ("B", 2):
                    with torch.no_grad():
                        model(x)  # In training mode: it moves the averages.
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    origin = only(fpdiff.compare(tmp_path / "A", tmp_path / "B"))
    assert (origin.step, origin.phase, origin.class_) == (2, "eval", "structure")
    assert "only in B" in origin.summary and "averages" in (origin.hint or "")


def test_the_sizes_that_follow_from_a_batch_are_said_to(tmp_path: Path) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with fpdiff.record(tmp_path / arm, level="op"):
            for step in range(3):
                x = torch.ones(5 if (arm, step) == ("B", 1) else 6, 8)
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    first, *rest = fpdiff.compare(tmp_path / "A", tmp_path / "B").origins
    assert (first.step, first.class_, first.slot) == (1, "metadata", "arg.0")
    assert rest and all("sizes" in (o.hint or "") for o in rest)


class PastTorch(torch.optim.Optimizer):
    """Writes through numpy, as an optimizer's own kernel does: after ops of its own, or alone."""

    def __init__(self, model: nn.Module, *, after_ops: bool) -> None:
        super().__init__(model.parameters(), {"lr": 0.01})
        self.after_ops, self.factors = after_ops, [1.0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        for parameter in group["params"]:
            if self.after_ops:
                parameter.sub_(parameter.grad, alpha=group["lr"])
            parameter.numpy()[:] *= self.factors[0]


@pytest.mark.parametrize("after_ops", [True, False])
def test_an_optimizer_that_writes_past_torch_is_named_as_the_state(
    tmp_path: Path, after_ops: bool
) -> None:
    for arm in ("A", "B"):
        hide_the_past()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
        optimizer = PastTorch(model, after_ops=after_ops)
        with fpdiff.record(tmp_path / arm, level="op"):
            for step in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 256)).square().sum().backward()
                optimizer.factors[0] = 0.5 if (arm, step) == ("B", 1) else 0.99
                optimizer.step()
    origins = fpdiff.compare(tmp_path / "A", tmp_path / "B").origins
    found = {(o.step, o.phase, o.module, o.slot) for o in origins}
    assert (1, "optimizer", "0", "weight") in found


def test_a_parameter_written_past_torch_is_no_ops_fault(tmp_path: Path) -> None:
    def after_backward(arm: str, step: int, model: nn.Module) -> None:
        assert isinstance(model, Net)
        gradient = model.out.bias.grad
        assert gradient is not None
        if (arm, step) == ("B", 1):
            gradient.numpy()[0] += 1

    origin = only(compared(tmp_path, after_backward=after_backward))
    assert (origin.step, origin.kind, origin.module) == (1, "reduced_gradient", "out")
    assert origin.class_ == "unseen-producer"


def test_what_a_program_prints_or_saves_is_no_difference(tmp_path: Path) -> None:
    def after(arm: str, step: int, model: nn.Module) -> None:
        if arm == "A":
            sum(p.detach().clone().norm() for p in model.parameters()).item()

    verdict = compared(tmp_path, after=after)
    assert verdict.verdict == "identical"
    assert [n for n in verdict.notes if "outside the model" in n]


def test_what_is_printed_may_differ(tmp_path: Path) -> None:
    def after(arm: str, step: int, model: nn.Module) -> None:
        torch.tensor([len(arm), ord(arm)]).sum().item()  # A clock, a host's number.

    assert compared(tmp_path, after=after).verdict == "identical"


def test_the_way_to_the_loss_is_shown(tmp_path: Path) -> None:
    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        return x.tanh().add(0.5 if (arm, step) == ("B", 1) else 0.25)

    origin = only(compared(tmp_path, twist=twist))
    assert origin.reaches[0] == "the loss"
    assert "aten.nll_loss_forward" in origin.reaches[1]
    assert "aten.add" in origin.reaches[-1]


def test_another_batch_is_told_as_data_with_what_made_it(tmp_path: Path) -> None:
    def run(arm: str) -> None:
        hide_the_past()
        torch.manual_seed(0)
        model = Net(arm, keep)
        model.drop.p = 0.0
        rows = torch.arange(96.0).view(12, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with fpdiff.record(tmp_path / arm, level="op"):
            for step in range(3):
                seed = 5 if (arm, step) == ("B", 1) else step
                order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
                loss = model(torch.stack([rows[i] for i in order[:4].tolist()])).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    for arm in "AB":
        run(arm)
    origin = only(fpdiff.compare(tmp_path / "A", tmp_path / "B"))
    assert (origin.step, origin.class_, origin.slot) == (1, "data", "arg.0")
    assert "aten.randperm" in origin.evidence[0]


def test_an_extra_draw_that_shuffles_otherwise_is_the_cause(tmp_path: Path) -> None:
    def run(arm: str) -> None:
        hide_the_past()
        torch.manual_seed(0)
        model = Net(arm, keep)
        model.drop.p = 0.0
        rows = torch.arange(96.0).view(12, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with fpdiff.record(tmp_path / arm, level="op"):
            for step in range(3):
                if (arm, step) == ("B", 1):
                    torch.set_rng_state(torch.Generator().manual_seed(4).get_state())
                order = torch.randperm(12)
                loss = model(rows[order][:4]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    for arm in "AB":
        run(arm)
    origin = only(fpdiff.compare(tmp_path / "A", tmp_path / "B"))
    assert place(origin) == (1, "other", "", "aten.randperm.default", "rng")


def test_runs_of_different_rungs_compare_over_what_both_have(tmp_path: Path) -> None:
    record(tmp_path, "A")
    (tmp_path / "A").rename(tmp_path / "op")
    torch.manual_seed(0)
    model = Net("A", keep)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1)
    with fpdiff.record(tmp_path / "layer", level="layer"):
        for _ in range(4):
            x, y = torch.randn(6, 8, generator=data), torch.randint(4, (6,), generator=data)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    verdict = fpdiff.compare(tmp_path / "op", tmp_path / "layer")
    assert verdict.verdict == "identical", verdict.summary
    assert verdict.compared is not None and verdict.compared.rung == "layer"


def test_a_tensor_that_one_run_looks_at_earlier_is_no_difference(tmp_path: Path) -> None:
    def look(arm: str, step: int, model: nn.Module) -> None:
        if (arm, step) == ("B", 2):
            scale.sum().item()

    scale = torch.full((16,), 0.5)
    verdict = compared(tmp_path, before=look, twist=lambda arm, x, step: x * scale)
    assert verdict.verdict == "identical", verdict.summary


def test_another_tensor_that_one_run_looks_at_earlier_is_named(tmp_path: Path) -> None:
    def look(arm: str, step: int, model: nn.Module) -> None:
        if (arm, step) == ("B", 2):
            scale.sum().item()

    def twist(arm: str, x: torch.Tensor, step: int) -> torch.Tensor:
        return x * (scale if (arm, step) == ("B", 2) else scales[0])

    scales = torch.tensor([0.5, 0.25])
    scale = torch.full((), 0.75)
    origin = compared(tmp_path, before=look, twist=twist).origins[0]
    assert (origin.step, origin.module) == (2, "")
