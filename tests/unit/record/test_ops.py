"""Operators as events: what they read, what they are given, what they make."""

import ctypes
import gc
from pathlib import Path

import pytest
import torch
from recorded import Event, Events, hide_the_past, info, mlp, recorded, train
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fpdiff


def ops(events: Events, name: str, **match: object) -> Events:
    """Return the events of an op, by its name without namespace and overload."""
    return Events(
        e for e in events.pick(**match) if e.op is not None and e.op.split(".")[1] == name
    )


class Body(nn.Module):
    """A module whose forward is a function; it has a parameter, so that it is the root."""

    def __init__(self, body: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)  # type: ignore[operator,no-any-return]


def run(tmp_path: Path, body: object, *, steps: int = 1, **options: object) -> Events:
    """Record training steps of a Body at rung op."""
    model = Body(body)
    with recorded(tmp_path / "run", level="op", **options) as events:
        train(model, steps=steps)
    assert "stopped" not in info(tmp_path / "run")
    return events


def reads(events: Events, event: Event) -> list[tuple[str, str | None, str]]:
    return [(e.kind, e.op, e.slot) for e in events.read_by(event)]


def line_of(event: Event) -> int:
    """Return the line of an event that this file's code led to."""
    assert event.source is not None and Path(__file__).name in event.source
    return int(event.source.rpartition(":")[2])


def test_an_op_has_the_line_that_ran_it(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        return F.relu(y)

    events = run(tmp_path, body)
    start = body.__code__.co_firstlineno
    lines = [line_of(ops(events, name, phase="forward")[0]) - start for name in ("mul", "relu")]
    assert lines == [1, 2]
    assert set(events.pick(phase="init").column("source")) == {None}
    made = [ops(events, name, phase="backward")[-1] for name in ("mul", "threshold_backward")]
    assert [line_of(e) - start for e in made] == [1, 2]
    assert all(str(e.source).startswith("backward of ") for e in made)
    assert {e.source for e in events.pick(phase="backward") if e.op is None} == {None}


def test_an_op_reads_what_made_its_inputs(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", level="op") as events:
        train(mlp(), steps=1)
    first, last = ops(events, "addmm", kind="result", phase="forward")
    relu = ops(events, "relu", kind="result").one()
    assert [(e.kind, e.module, e.slot) for e in events.read_by(first)] == [
        ("parameter", "0", "weight"),
        ("parameter", "0", "bias"),
        ("input", "", "arg.0"),
    ]
    assert first.module == "0" and first.module_class == "Linear"
    assert events.read_by(relu) == [first]
    assert relu in events.read_by(last)
    assert events.one(kind="output", module="1").inputs == (relu.seq,)


def test_the_events_of_the_other_rungs_are_there_all_the_same(tmp_path: Path) -> None:
    shown = {}
    for level in ("layer", "op"):
        with recorded(tmp_path / level, level=level) as events:
            train(mlp(), steps=2, optimizer=None)
        shown[level] = [(e.where, e.digest) for e in events if e.op is None]
    assert shown["layer"] == shown["op"]


def test_an_in_place_op_is_read_by_what_comes_after_it(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        z = y.view(-1)
        z.add_(1)
        return y.exp()

    events = run(tmp_path, body)
    product = ops(events, "mul", kind="result", phase="forward").one()
    added = ops(events, "add_", kind="written", phase="forward").one()
    assert (added.slot, product in events.read_by(added)) == ("self", True)
    exp = ops(events, "exp", kind="result").one()
    assert events.read_by(exp) == [added]


def test_keyword_arguments_are_read_too(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(3, 4)
        with torch.no_grad():
            torch.mul(input=x, other=self.weight, out=out)
        return x * self.weight + torch.add(out, 0, alpha=2)

    events = run(tmp_path, body)
    written = ops(events, "mul", kind="written").one(slot="out")
    assert {e.slot for e in events.read_by(written)} == {"arg.0", "weight"}
    assert ops(events, "add", kind="arguments", phase="forward")[0].slot == "other,alpha"


def test_a_view_is_no_event_but_who_chose_it_is(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight)[1:]
        return y.t().exp()

    events = run(tmp_path, body)
    made = {e.op for e in events if e.kind in ("result", "written")}
    assert not [op for op in made if op and op.split(".")[1] in ("slice", "t", "transpose")]
    chosen = ops(events, "slice", kind="arguments", phase="forward").one()
    exp = ops(events, "exp", kind="result").one()
    assert chosen in events.read_by(exp)
    assert ops(events, "mul", kind="result", phase="forward").one() in events.read_by(exp)


def test_parts_of_a_buffer_are_read_part_by_part(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(2, 3, 4)
        buffer[0].copy_(x.detach())
        buffer[1].copy_(x.detach() * 2)
        return buffer[1].exp() * self.weight + buffer.sum()

    events = run(tmp_path, body)
    first, second = ops(events, "copy_", kind="written")
    exp = ops(events, "exp", kind="result").one()
    total = ops(events, "sum", kind="result", phase="forward")[0]
    assert second in events.read_by(exp) and first not in events.read_by(exp)
    assert {first, second} <= set(events.read_by(total))
    assert not events.pick(kind="uninitialised")


def test_memory_that_nobody_wrote_is_told_where_it_is_read(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        padding = torch.empty(2, 4)
        return torch.cat([x * self.weight, padding])

    events = run(tmp_path, body)
    assert not ops(events, "empty")
    hole = events.one(kind="uninitialised", phase="forward")
    assert (hole.op, hole.slot) == ("aten.cat.default", "tensors.1")
    assert hole in events.read_by(ops(events, "cat", kind="result").one())


@pytest.mark.parametrize(
    "fill",
    [
        lambda t: t.zero_(),
        lambda t: t.fill_(3),
        lambda t: t.normal_(),
        lambda t: t.bernoulli_(0.5),
        lambda t: t.copy_(torch.ones(2, 4)),
        lambda t: torch.add(torch.ones(2, 4), 1, out=t),
        lambda t: torch._foreach_zero_([t]),
        lambda t: (t[0].fill_(1), t[1].fill_(2)),
        lambda t: t.t().copy_(torch.ones(4, 2)),
    ],
)
def test_what_fills_memory_does_not_read_it(tmp_path: Path, fill: object) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        padding = torch.empty(2, 4)
        fill(padding)  # type: ignore[operator]
        return torch.cat([x * self.weight, padding])

    assert not run(tmp_path, body).pick(kind="uninitialised")


@pytest.mark.parametrize(
    ("call", "unread"),
    [
        (lambda hole, x: torch.addmm(hole(2, 2), x, x.t(), beta=0), True),
        (lambda hole, x: torch.baddbmm(hole(1, 2, 2), x[None], x.t()[None], beta=0.0), True),
        (lambda hole, x: hole(2, 2).addmm_(x, x.t(), beta=0), True),
        (lambda hole, x: torch.addmm(hole(2, 2), x, x.t(), beta=0.5), False),
        (lambda hole, x: torch.addmm(hole(2, 2), x, x.t()), False),
    ],
)
def test_what_another_argument_rules_out_is_not_read(
    tmp_path: Path, call: object, unread: bool
) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        a = torch.arange(8.0).view(2, 4)
        made: torch.Tensor = call(torch.empty, a)  # type: ignore[operator]
        return x * self.weight + made.sum()

    holes = run(tmp_path, body).pick(kind="uninitialised")
    assert [e.slot for e in holes] == ([] if unread else ["self"])


def test_a_fused_optimizers_first_step_does_not_read_what_it_makes(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    with recorded(tmp_path / "run", level="op") as events:
        train(model, steps=2, optimizer=optimizer)
    assert not events.pick(kind="uninitialised")
    first, second = (
        next(iter(ops(events, "_fused_sgd_", step=step, slot="momentum_buffer_list.0")))
        for step in (0, 1)
    )
    kept = events.one(step=1, phase="init", slot="weight.momentum_buffer", module="0")
    assert kept.digest == first.digest
    assert any(e.digest == first.digest for e in events.read_by(second))


def test_memory_stays_unwritten_in_the_next_step_and_written_memory_written(
    tmp_path: Path,
) -> None:
    kept: dict[str, torch.Tensor] = {}

    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept["hole"], kept["full"] = torch.empty(4), torch.empty(4).fill_(2)
        return x * self.weight + kept["full"] + kept["hole"]

    events = run(tmp_path, body, steps=2)
    # A read is told once a step and memory.
    holes = events.pick(kind="uninitialised")
    assert [e.step for e in holes] == [0, 1]
    assert all(e.op == "aten.add.Tensor" and e.slot == "other" for e in holes)


def test_a_freed_address_leads_nowhere(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):  # Malloc hands the same blocks out again.
            (x.detach() * 2).exp()
        return x * self.weight

    events = run(tmp_path, body)
    results = ops(events, "exp", kind="result")
    products = [e for e in ops(events, "mul", kind="result", phase="forward") if e.inputs][:20]
    assert [events.read_by(e)[-1] for e in results] == products


def test_elements_of_lists_read_their_own(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    with recorded(tmp_path / "run", level="op") as events:
        train(model, steps=2, optimizer=optimizer)
    last = ops(events, "_foreach_add_", kind="written", step=1, phase="optimizer")[-4:]
    assert [e.slot for e in last] == ["self.0", "self.1", "self.2", "self.3"]
    names = []
    for event in last:
        parameters = events.read_by(event).pick(kind="parameter")
        names += [(p.module, p.slot) for p in parameters]
    assert names == [("0", "weight"), ("0", "bias"), ("2", "weight"), ("2", "bias")]


def test_scalars_of_the_optimizer_read_its_options(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, foreach=False)
    with recorded(tmp_path / "run", level="op") as events:
        train(model, steps=1, optimizer=optimizer)
    given = ops(events, "add_", kind="arguments", phase="optimizer")[0]
    assert (given.slot, given.value) == ("alpha", -0.125)
    assert "optimizer0.group0.lr" in [e.slot for e in events.read_by(given)]
    updated = ops(events, "add_", kind="written", phase="optimizer")
    assert [e.module for e in updated] == ["0", "0", "2", "2"]


def test_backward_ops_belong_to_the_module_whose_forward_made_their_node(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", level="op") as events:
        train(mlp(), steps=1)
    made = [e for e in events if e.phase == "backward" and e.kind == "result"]
    assert [(e.op, e.module) for e in made if e.module] == [
        ("aten.mm.default", "2"),
        ("aten.mm.default", "2"),
        ("aten.sum.dim_IntList", "2"),
        ("aten.threshold_backward.default", "1"),
        ("aten.mm.default", "0"),
        ("aten.sum.dim_IntList", "0"),
    ]


def test_accumulation_belongs_to_the_parameters_module(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", level="op") as events:
        train(mlp(), steps=1, microbatches=2)
    added = ops(events, "add_", kind="written", phase="backward")
    assert {(e.module, e.microbatch) for e in added} == {("0", 1), ("2", 1)}
    # What the optimizer gets is the sum, not what either pass made.
    for gradient in events.pick(kind="reduced_gradient"):
        assert [e.op for e in events.read_by(gradient)] == ["aten.add_.Tensor"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_ops_are_told_from_backward_ops(tmp_path: Path, reentrant: bool) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.inner = nn.Linear(4, 4), inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.inp(x), use_reentrant=reentrant)  # type: ignore[no-any-return]

    with recorded(tmp_path / "run", level="op") as events:
        train(Net(), steps=1)
    forward = ops(events, "tanh", kind="result").one(phase="forward")
    again = ops(events, "tanh", kind="result").one(phase="recompute")
    assert again.module == forward.module == "inner.1"
    assert again.digest == forward.digest
    assert ops(events, "tanh_backward", kind="result").one().phase == "backward"


def test_a_function_that_is_recomputed_is_told_too(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: (t * self.weight).tanh(), x, use_reentrant=False)  # type: ignore[no-any-return]

    events = run(tmp_path, body)
    assert [e.phase for e in ops(events, "tanh", kind="result")] == ["forward", "recompute"]


def test_draws_say_what_state_their_generator_was_in(tmp_path: Path) -> None:
    own = torch.Generator().manual_seed(3)

    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(4, generator=own)
        return F.dropout(x * self.weight + noise, 0.5) + torch.rand(4)

    events = run(tmp_path, body)
    drawn = [e for e in events.pick(kind="generator", phase="forward") if e.op]
    assert [(e.op, e.slot) for e in drawn] == [
        ("aten.rand.generator", "generator"),
        ("aten.bernoulli_.float", "torch.cpu"),
        ("aten.rand.default", "torch.cpu"),
    ]
    assert drawn[2].inputs == (drawn[1].seq,) and drawn[1].digest != drawn[2].digest
    start = events.one(kind="generator", phase="init", slot="torch.cpu")
    assert drawn[1].digest == start.digest
    whole = events.one(kind="generator", slot="torch")
    assert {drawn[1].seq, drawn[2].seq} <= set(whole.inputs)


def test_a_draw_reads_the_draw_before_from_the_same_generator(tmp_path: Path) -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]

    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            for generator in generators:
                x = x + torch.rand(4, generator=generator)
        return x * self.weight

    drawn = ops(run(tmp_path, body), "rand", kind="generator", phase="forward")
    assert len(drawn) == 8
    befores = [(), (), *((event.seq,) for event in drawn)]
    assert [event.inputs for event in drawn] == befores[:8]


def test_a_number_taken_out_may_come_back_as_any_scalar(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        scale = x.max().item()
        return x * self.weight / scale

    events = run(tmp_path, body)
    number = events.one(kind="number", phase="forward")
    given = ops(events, "div", kind="arguments", phase="forward").one()
    assert number in events.read_by(given) and given.value == number.value


def test_ops_before_a_forward_belong_to_its_step(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(tmp_path / "run", level="op") as events:
        for _ in range(3):
            batch = torch.ones(3, 4).mul(2)
            loss = model(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    made = ops(events, "mul", kind="result", phase="other")
    assert [e.step for e in made] == [1, 2]  # Nothing is recorded before the first module.
    for event in made:
        batch_event = events.one(kind="input", step=event.step, slot="arg.0", op=None)
        assert batch_event.inputs == (event.seq,)


def test_ops_between_two_optimizers_belong_to_their_step(tmp_path: Path) -> None:
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with recorded(tmp_path / "run", level="op") as events:
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            first.step()
            gradient = model[2].weight.grad
            assert isinstance(gradient, torch.Tensor)
            gradient.mul_(0.5)
            second.step()
    halved = [e for e in ops(events, "mul_", kind="written") if e.phase == "other"]
    assert [e.step for e in halved] == [0, 1]
    start = test_ops_between_two_optimizers_belong_to_their_step.__code__.co_firstlineno
    assert {line_of(e) - start for e in halved} == {10}
    for event in halved:
        seen = events.one(kind="reduced_gradient", step=event.step, module="2", slot="grad.weight")
        assert seen.inputs == (event.seq,)
        assert any(e.phase == "backward" for e in events.ancestors(event))


def test_calls_on_both_sides_of_an_optimizer_are_counted_on(tmp_path: Path) -> None:
    """An op's call is known by its number, whichever of the step's optimizers it comes after."""
    model = mlp()
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in [*model.parameters()][:3]]
    with recorded(tmp_path / "run", level="op") as events:
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            torch.ones(2).mul(2)
            for optimizer in optimizers:
                optimizer.step()
                torch.ones(2).mul(2)
    made = ops(events, "mul", kind="result", phase="other")
    # What comes after the last optimizer belongs to the next step.
    assert [e.occurrence for e in made if e.step == 0] == [0, 1, 2]
    assert [e.occurrence for e in made if e.step == 1] == [0, 1, 2, 3]


def test_what_is_marked_and_partly_unwritten_reads_the_hole(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        room = torch.empty(2, 4)
        room[0] = x[0].detach()
        fpdiff.mark("room", room)
        return x * self.weight

    events = run(tmp_path, body)
    mark, hole = events.one(kind="mark"), events.one(kind="uninitialised")
    assert hole.slot == "room" and hole in events.read_by(mark)


def test_an_exception_in_a_forward_leaves_no_stale_module(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            raise ValueError("too small")
        return x * self.weight

    model = Body(body)
    with recorded(tmp_path / "run", level="op") as events:
        for size in (3, 1, 3):
            try:
                loss = model(torch.ones(size, 4)).sum()
            except ValueError:
                torch.ones(3).exp()
                continue
            loss.backward()
    assert ops(events, "exp", kind="result").one().phase == "other"


@pytest.mark.parametrize("by", ["numpy", "ctypes"])
@pytest.mark.parametrize("rehash", [False, True])
def test_a_write_that_no_op_made_is_seen_when_asked_for(
    tmp_path: Path, by: str, rehash: bool
) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        if by == "numpy":
            y.detach().numpy()[0, 0] = 5
        else:
            ctypes.c_float.from_address(y.data_ptr()).value = 5
        return y.exp()

    events = run(tmp_path, body, rehash=rehash)
    found = [e for e in events.pick(kind="rewrite") if e.op]
    assert [(e.op, e.slot) for e in found] == ([("aten.exp.default", "self")] if rehash else [])
    if rehash:
        product = ops(events, "mul", kind="result", phase="forward").one()
        assert found[0].inputs == (product.seq,)
        assert events.read_by(ops(events, "exp", kind="result").one()) == [found[0]]


def test_rehashing_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
    with recorded(tmp_path / "run", level="op", rehash=True) as events:
        train(model, steps=3, shape=(2, 1, 5, 5), optimizer=torch.optim.AdamW(model.parameters()))
    assert not events.pick(kind="rewrite")


def test_batch_statistics_are_written_though_the_schema_is_silent(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(4)
    with recorded(tmp_path / "run", level="op") as events:
        train(model, steps=2)
    written = ops(events, "native_batch_norm", kind="written", step=1)
    assert [e.slot for e in written] == ["running_mean", "running_var"]


def test_an_undefined_output_is_not_recorded_but_read(tmp_path: Path) -> None:
    model = nn.EmbeddingBag(5, 4, mode="sum")
    with recorded(tmp_path / "run", level="op") as events:
        output = model(torch.tensor([[1, 2], [3, 4]]))
        output.sum().backward()
    made = ops(events, "_embedding_bag", kind="result")
    assert [e.slot for e in made] == ["out.0", "out.1", "out.2"]
    assert not events.pick(kind="input", phase="backward")


def test_tied_parameters_and_empty_tensors(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            none = x.new_zeros(0, 4).exp()
            return self.out(self.emb(x.long())) + none.sum()  # type: ignore[no-any-return]

    hide_the_past()
    with recorded(tmp_path / "run", level="op") as events:
        train(Net(), steps=2, shape=(2, 3))
    weight = events.one(kind="parameter", phase="init", step=1)
    readers = [e.op for e in events if e.op and weight.seq in e.inputs and e.phase == "forward"]
    assert "aten.embedding.default" in readers and len(readers) == 2


def test_modules_outside_the_window_are_not_recorded_and_nothing_is_made_up(
    tmp_path: Path,
) -> None:
    with recorded(tmp_path / "run", level="op", modules=r"^2$") as events:
        train(mlp(), steps=1)
    assert {e.module for e in events if e.op and e.phase == "forward"} == {"2"}
    assert info(tmp_path / "run")["blind_spots"]["op of a module outside the window"] > 0


def test_the_recorders_own_ops_are_not_recorded(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", level="op", stats=True) as events:
        train(nn.Linear(4, 4), steps=1)
    known = {"addmm", "pow", "mean", "ones_like", "mm", "sum", "mul", "div", "expand", "rand"}
    known |= {"add_", "t", "detach", "transpose", "square", "permute"}
    assert {e.op.split(".")[1] for e in events if e.op} <= known


def test_graphs_with_double_backward_and_transforms(tmp_path: Path) -> None:
    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight).sum(1)
        (slope,) = torch.autograd.grad(y.square().sum(), self.weight, create_graph=True)
        mapped = torch.func.vmap(lambda row: row.exp().sum())(x)
        total: torch.Tensor = y + slope.sum() + mapped
        return total

    events = run(tmp_path, body)
    assert "recompute" not in {e.phase for e in events}


def test_storages_are_let_go(tmp_path: Path) -> None:
    gone = 0

    def body(self: Body, x: torch.Tensor) -> torch.Tensor:
        nonlocal gone
        temporary = (x * self.weight).detach()
        pointer = torch.multiprocessing.reductions.StorageWeakRef(temporary.untyped_storage())
        del temporary
        gc.collect()
        gone += pointer.expired()
        return x * self.weight

    run(tmp_path, body, steps=2)
    assert gone == 2
