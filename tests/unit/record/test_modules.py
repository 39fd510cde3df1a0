import gc
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded import Events, hide_the_past, info, mlp, read, recorded, train
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fpdiff

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Residual(nn.Module):
    """Adds in its own code what its children made."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x + self.a(x))  # type: ignore[no-any-return]


def layers(events: Events) -> list[Any]:
    """Return what the layer rung adds to a forward."""
    found = [e for e in events if e.kind in ("input", "output", "rewrite", "generator")]
    return [(e.phase, e.kind, e.module, e.call, e.slot) for e in found if e.phase != "init"]


# Order, edges


def test_a_model_is_recorded_in_call_order(run: Path) -> None:
    with recorded(run) as events:
        mlp()(X)
    assert layers(events) == [
        ("forward", "input", "", 0, "arg.0"),
        ("forward", "output", "0", 0, "out.0"),
        ("forward", "output", "1", 0, "out.0"),
        ("forward", "output", "2", 0, "out.0"),
        ("forward", "output", "", 0, "out.0"),
    ]


def test_an_output_reads_arguments_parameters_and_flag(run: Path) -> None:
    with recorded(run) as events:
        mlp()(X)
    read_by = events.read_by(events.one(module="2", kind="output"))
    assert read_by.names("kind", "module", "slot") == [
        ("parameter", "2", "weight"),
        ("parameter", "2", "bias"),
        ("training_flag", "2", "training"),
        ("output", "1", "out.0"),
    ]


def test_a_residual_sum_is_an_input_under_its_caller(run: Path) -> None:
    with recorded(run) as events:
        Residual()(X)
    assert layers(events) == [
        ("forward", "input", "", 0, "arg.0"),
        ("forward", "output", "a", 0, "out.0"),
        ("forward", "input", "", 0, "b.arg.0"),
        ("forward", "output", "b", 0, "out.0"),
        ("forward", "output", "", 0, "out.0"),
    ]
    total = events.one(slot="b.arg.0")
    assert events.one(slot="arg.0").seq in total.reads
    assert events.one(module="a", kind="output").seq in total.reads
    assert events.one(module="b", kind="output").seq not in total.reads
    assert total.seq in events.one(module="b", kind="output").reads


def test_what_is_only_passed_on_reads_what_made_it(run: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.same = nn.Identity()
            self.flat = nn.Flatten(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.flat(self.same(self.linear(x)))  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X)
    made = events.one(module="linear", kind="output")
    same, flat, root = (events.one(module=m, kind="output") for m in ("same", "flat", ""))
    assert same.digest == flat.digest == root.digest == made.digest
    assert (same.reads, flat.reads, root.reads) == ({made.seq}, {same.seq}, {flat.seq})


def test_an_in_place_module_gives_what_it_wrote(run: Path) -> None:
    torch.manual_seed(0)  # Else there may be nothing for it to write.
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    with recorded(run) as events:
        model(X).sum().backward()
    linear, relu, last = (events.one(module=m, kind="output") for m in "012")
    assert linear.digest != relu.digest
    assert linear.seq in relu.reads and relu.seq in last.reads and linear.seq not in last.reads


def test_a_tensor_changed_between_modules_is_an_input_again(run: Path) -> None:
    class Model(Residual):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            y.mul_(2)
            return self.b(y)  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X)
    changed = events.one(slot="b.arg.0", module="")
    assert events.one(module="a", kind="output").seq in changed.reads


def test_many_inputs_are_read_as_a_span(run: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 1) for _ in range(70))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([part(x) for part in self.parts]).sum()

    with recorded(run) as events:
        Model()(X)
    root = events.one(module="", kind="output")
    assert root.span and root.inputs == ()
    assert {e.seq for e in events.pick(kind="output") if e.module} <= root.reads


# Arguments and outputs


def test_keyword_arguments_are_seen_before_the_call(run: Path) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
            mask.fill_(9)
            return self.inner(input=x)  # type: ignore[no-any-return]

    mask = torch.ones(3)
    with recorded(run) as events:
        fpdiff.mark("none", mask)  # No module has run: nothing to belong to.
        Writes()(X, mask=mask)
        fpdiff.mark("after", mask)
    assert ("forward", "input", "", 0, "arg.mask") in layers(events)
    assert events.one(slot="arg.mask").digest != events.one(slot="after").digest
    assert events.one(slot="arg.0").seq in events.one(module="inner", kind="output").reads


@dataclass
class Answer:
    logits: torch.Tensor
    extra: Any = None


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda y: Answer(y, [y + 1]), ["out.logits", "out.extra.0"]),
        (lambda y: {"a": y, "b": (y + 1, None)}, ["out.a", "out.b.0"]),
        (lambda y: (y, y + 1), ["out.0", "out.1"]),
        (lambda y: None, []),
        (lambda y: [], []),
    ],
)
def test_outputs_in_containers_have_slots(run: Path, make: Any, slots: list[str]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return make(self.inner(x))

    with recorded(run) as events:
        Model()(X)
    assert events.pick(module="", kind="output").column("slot") == slots


def test_what_cannot_be_looked_into_is_a_blind_spot(run: Path) -> None:
    class Opaque:
        pass

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, other: Any) -> Any:
            self.inner(x)
            return {1, 2}

    with recorded(run):
        Model()(X, Opaque())
    assert info(run)["blind_spots"] == {
        "argument or output of type Opaque": 1,
        "argument or output of type set": 1,
    }


def test_an_inference_tensor_is_recorded(run: Path) -> None:
    model = mlp()
    with recorded(run) as events, torch.inference_mode():
        model(X)
    assert [e.module for e in events.pick(kind="output")] == ["0", "1", "2", ""]
    assert set(events.pick(kind="output").column("phase")) == {"eval"}


def test_inside_a_functorch_transform_is_a_blind_spot(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        torch.func.vmap(model)(X)
        model(X)
    assert info(run)["blind_spots"]["functorch transform"] > 0
    assert info(run)["finished"] and len(events.pick(kind="output", module="0")) == 1


def test_sparse_and_subclass_outputs_are_recorded(run: Path) -> None:
    class Named(torch.Tensor):
        pass

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x).detach().to_sparse(), self.inner(x).as_subclass(Named)

    with recorded(run) as events:
        Model()(X)
    assert events.pick(module="", kind="output").column("slot") == ["out.0", "out.1"]


# Exceptions


def test_an_exception_in_a_call_leaves_the_others_in_place(run: Path) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise KeyError("mine")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails = Fails()
            self.after = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, catch: bool) -> torch.Tensor:
            try:
                self.fails(x)
            except KeyError:
                if not catch:
                    raise
            return self.after(x)  # type: ignore[no-any-return]

    model = Model()
    with recorded(run) as events:
        model(X, True)
        with pytest.raises(KeyError, match="mine"):
            model(X, False)
        model(X, True)
    outputs = events.pick(kind="output")
    whole = ["fails.inner", "after", ""]
    assert outputs.column("module") == [*whole, "fails.inner", *whole]
    assert outputs.column("microbatch") == [0, 0, 0, 1, 2, 2, 2]


# Names and calls


def test_a_shared_module_counts_its_calls(run: Path) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    with recorded(run) as events:
        train(model, steps=1, microbatches=2)
    calls = [(e.module, e.call, e.microbatch) for e in events.pick(kind="output", module="0")]
    assert calls == [("0", 0, 0), ("0", 1, 0), ("0", 0, 1), ("0", 1, 1)]
    assert events.pick(kind="parameter", phase="init").column("slot") == ["weight", "bias"]


def test_microbatches_count_the_forwards_with_gradients(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=2, microbatches=3)
    batches = events.pick(kind="input", slot="arg.0").names("step", "microbatch", "call")
    assert batches == [(s, m, 0) for s in range(2) for m in range(3)]
    assert events.pick(kind="loss").names("step", "microbatch") == [b[:2] for b in batches]


def test_losses_and_teachers_are_roots_of_their_own(run: Path) -> None:
    model, teacher, criterion = mlp(), mlp(1).requires_grad_(False), nn.MSELoss()
    with recorded(run) as events:
        with torch.no_grad():
            target = teacher(X)
        criterion(model(X), target).backward()
    assert events.pick(kind="output").column("module") == [
        *("~Sequential.0", "~Sequential.1", "~Sequential.2", "~Sequential"),
        *("0", "1", "2", ""),
        "~MSELoss",
    ]
    given = events.pick(module="~MSELoss", kind="input")
    assert given.column("slot") == ["arg.0", "arg.1"]
    assert given[0].reads == {events.one(module="", kind="output").seq}
    assert given[1].reads == {events.one(module="~Sequential", kind="output").seq}
    assert events.one(kind="loss").reads == {events.one(module="~MSELoss", kind="output").seq}


def test_a_module_made_on_the_fly_is_named_below_its_caller(run: Path) -> None:
    class Model(Residual):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Softmax(-1)(self.a(x))  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X)
    assert events.pick(kind="output").column("module") == ["a", "~Softmax", ""]


@pytest.mark.parametrize("wrap", ["checkpoint", "data parallel", "both"])
def test_wrappers_do_not_show(run: Path, wrap: str) -> None:
    inner: nn.Module = nn.Linear(4, 4)
    model: nn.Module = nn.Sequential(
        checkpoint_wrapper(inner) if wrap != "data parallel" else inner, nn.Linear(4, 1)
    )
    if wrap != "checkpoint":
        model = nn.DataParallel(model)
    with recorded(run) as events:
        train(model, steps=1)
    outputs = events.pick(kind="output", phase="forward").column("module")
    assert outputs == ["0", "1", ""]
    assert set(events.pick(kind="local_gradient").column("module")) == {"0", "1"}


def test_ddp_does_not_show(run: Path, gloo: None) -> None:
    ddp = nn.parallel.DistributedDataParallel(mlp())
    with recorded(run) as events:
        train(ddp, steps=2)
    del ddp  # Else it is found as a copy.
    gc.collect()
    with recorded(run.with_name("plain")) as expected:
        train(mlp(), steps=2)
    assert [e.where for e in events] == [e.where for e in expected]
    assert [e.digest for e in events if e.kind != "generator"] == [
        e.digest for e in expected if e.kind != "generator"
    ]


def test_fully_sharded_parameters_are_their_local_shards(run: Path, gloo: None) -> None:
    from torch.distributed.fsdp import fully_shard

    model, mesh = mlp(), dist.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    with recorded(run) as events:
        train(model, steps=2)
    del model
    gc.collect()
    with recorded(run.with_name("plain")) as plain:
        train(mlp(), steps=2)
    assert info(run)["finished"]
    for kind in ("parameter", "reduced_gradient"):
        for one, other in zip(events.pick(kind=kind), plain.pick(kind=kind), strict=True):
            assert (one.where, one.digest) == (other.where, other.digest)


def test_a_compiled_model_is_one_opaque_site(run: Path) -> None:
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    with recorded(run) as events:
        train(compiled, steps=2)
    assert events.pick(kind="output", step=1).column("module") == [""]
    assert info(run)["blind_spots"] == {"compiled region: what is inside it": 2}
    assert events.pick(kind="local_gradient", step=1).names("module", "slot") == [
        ("2", "grad.bias"),
        ("2", "grad.weight"),
        ("0", "grad.bias"),
        ("0", "grad.weight"),
    ]


class Compiled(nn.Module):
    """A part of it is compiled, in place or not; between its two graphs it runs eagerly."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.first, self.part = nn.Linear(4, 4), Broken()
        if in_place:
            self.part.compile(backend="eager")
        else:
            compiled: Any = torch.compile(self.part, backend="eager")
            self.part = compiled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.part(self.first(x))
        return y


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.a(x)
        if y.sum() > 1e9:  # Breaks the graph.
            y = y.relu()
        y = self.b(y)
        return y


def compiled_counts() -> dict[str, dict[str, int]]:
    counters = torch._dynamo.utils.counters
    return {name: dict(counters[name]) for name in ("stats", "frames", "graph_break")}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it.
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_part_is_one_site_and_compiled_as_before(run: Path, in_place: bool) -> None:
    found = []
    for is_recorded in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = Compiled(in_place=in_place)
        with recorded(run) if is_recorded else nullcontext(Events()) as events:
            train(model, steps=2)
        found.append((compiled_counts(), [p.tolist() for p in model.parameters()]))
    assert found[0] == found[1] and found[0][0]["stats"]["unique_graphs"]
    assert events.pick(kind="output", step=1).column("module") == ["first", "part", ""]
    assert info(run)["blind_spots"] == {"compiled region: what is inside it": 2}


# Phases


class Checkpointed(nn.Module):
    """Computes a block again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = mlp()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return y


def test_without_gradients_a_forward_is_an_evaluation(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        with torch.no_grad():
            model(X)
        train(model, steps=1)
        with torch.no_grad():
            model(X)
    phases = events.pick(kind="output", module="").names("step", "phase")
    assert phases == [(0, "eval"), (0, "forward"), (1, "eval")]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_recompute(run: Path, reentrant: bool) -> None:
    with recorded(run) as events:
        train(Checkpointed(reentrant), steps=1, microbatches=2)
    # What is not reentrant stops when it has all that it needs, here inside the last layer.
    for module in ("block.0", "block.1"):
        first = events.pick(kind="output", module=module, phase="forward")
        again = events.pick(kind="output", module=module, phase="recompute")
        assert first.column("microbatch") == again.column("microbatch") == [0, 1]
        assert again.column("call") == [0, 0]
        assert first.column("digest") == again.column("digest")
    given = events.pick(kind="input", phase="recompute")
    assert given.names("module", "slot", "microbatch") == [("block", "arg.0", n) for n in (0, 1)]
    assert given.column("digest") == events.pick(module="first", kind="output").column("digest")


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_inside_a_checkpoint_are_recorded(run: Path, reentrant: bool) -> None:
    with recorded(run) as events:
        train(Checkpointed(reentrant), steps=1)
    gradients = {(e.module, e.slot) for e in events.pick(kind="gradient")}
    assert {("block.2", "grad.1.out.0"), ("block.1", "grad.0.out.0")} <= gradients
    assert len(events.pick(kind="local_gradient")) == 6


# Generators


def test_a_module_that_draws_says_from_what(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    torch.manual_seed(3)
    with recorded(run) as events:
        train(model, steps=2)
    drew = events.pick(kind="generator", phase="forward")
    assert drew.names("step", "module", "slot") == [(0, "1", "torch"), (1, "1", "torch")]
    assert drew[0].seq in events.pick(module="1", kind="output")[0].reads
    assert drew[0].digest != drew[1].digest


def test_a_draw_in_a_callers_own_code_is_the_callers(run: Path) -> None:
    class Model(Residual):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(F.dropout(self.a(x)))  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X)
    drew = events.one(kind="generator", phase="forward")
    assert drew.module == ""
    assert drew.seq in events.one(slot="b.arg.0").reads


def test_a_draw_reads_the_draw_before(run: Path) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
    with recorded(run) as events:
        model(X)
    first, second = events.pick(kind="generator", phase="forward")
    assert second.reads == {first.seq}


def test_a_module_that_does_not_draw_says_nothing(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    with recorded(run) as events:
        model(X)
    assert events.pick(kind="generator", phase="forward") == []


# Rungs and windows


def test_at_rung_step_only_roots_are_seen(run: Path) -> None:
    model = mlp()
    with recorded(run, level="step") as events:
        train(model, steps=2)
    kinds = {e.kind for e in events}
    assert kinds == {
        *("parameter", "generator", "training_flag", "option"),
        *("input", "loss", "local_gradient", "reduced_gradient"),
    }
    assert events.pick(kind="input").names("step", "slot") == [(0, "arg.0"), (1, "arg.0")]


def test_a_window_of_modules_keeps_what_lies_beside_the_layers(run: Path) -> None:
    model = nn.Sequential(mlp(), nn.Linear(2, 4), mlp(1))
    with recorded(run, modules=r"^2\.") as events:
        train(model, steps=1)
    assert [e.module for e in events.pick(kind="output")] == ["2.0", "2.1", "2.2", ""]
    assert len(events.pick(kind="parameter", phase="init")) == 10
    assert len(events.pick(kind="reduced_gradient")) == 10
    weights = {e.seq for e in events.pick(kind="parameter", phase="init") if e.module[0] != "2"}
    seen = {e.seq for e in events.ancestors(events.one(module="2.0", kind="output"))}
    assert weights <= seen  # What is left out passes its own inputs on.


def test_rehash_sees_a_write_behind_the_dispatchers_back(run: Path) -> None:
    class Model(Residual):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            y.detach().numpy()[0, 0] = 5
            return self.b(y)  # type: ignore[no-any-return]

    model = Model()
    with recorded(run, rehash=True) as events:
        model(X)
    rewrite = events.one(kind="rewrite")
    assert (rewrite.module, rewrite.slot) == ("b", "arg.0")
    made = events.one(module="a", kind="output")
    assert rewrite.reads == {made.seq} and rewrite.digest != made.digest
    assert rewrite.seq in events.one(module="b", kind="output").reads
    with recorded(run.with_name("without")) as without:
        model(X)
    assert without.pick(kind="rewrite") == []


def test_rehash_is_silent_when_nothing_was_rewritten(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(4, 1))
    with recorded(run, rehash=True) as events:
        train(model, steps=1)
    assert events.pick(kind="rewrite") == []


def test_statistics_stand_beside_digests(run: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 1))
    nn.init.constant_(model[0].weight, 2.0)  # type: ignore[arg-type]
    with recorded(run, stats=True) as events:
        model(X)
    weight = events.one(kind="parameter", slot="weight")
    assert (weight.l2, weight.absmax, weight.nonfinite) == (4.0, 2.0, 0)
    assert events.one(kind="training_flag", module="0").l2 is None
    assert all(e.l2 is not None for e in events.pick(kind="output"))


def test_without_stats_there_are_none(run: Path) -> None:
    with recorded(run) as events:
        mlp()(X)
    assert {(e.l2, e.absmax, e.nonfinite) for e in events} == {(None, None, None)}


# Threads


def test_another_thread_is_a_blind_spot(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        model(X)
        thread = threading.Thread(target=lambda: model(X))
        thread.start()
        thread.join()
        model(X)
    assert events.pick(kind="output", module="").column("microbatch") == [0, 1]
    assert info(run)["blind_spots"]["thread not followed"] > 0


def test_scopes_are_empty_between_calls(run: Path) -> None:
    model = mlp()
    with fpdiff.record(run):
        for _ in range(3):
            model(X)
        from fpdiff.fingerprint.record import current

        assert current.script is not None
        assert len(current.script.recorder.scopes) == 0
    assert len(read(run).pick(kind="output", module="")) == 3


def test_a_model_at_the_address_of_one_that_is_gone_is_another(run: Path) -> None:
    with recorded(run) as events:
        addresses = []
        for _ in range(30):  # All in one step: none is optimized.
            model = nn.Linear(4, 4)
            addresses.append(id(model))
            model(X).sum().backward()
            del model
    assert len(set(addresses)) < len(addresses)  # Some addresses were used again.
    inputs = events.pick(kind="input", phase="forward")
    assert len(inputs) == 30 and set(inputs.column("microbatch")) == {0}
    assert len(events.pick(kind="parameter")) == 2 * 30


def test_a_modules_name_may_be_no_text(run: Path) -> None:
    model = mlp()
    model.add_module("\ud800", nn.Identity())
    with recorded(run) as events:
        train(model, steps=1)
    assert events.pick(kind="output", module="\\ud800")
    assert info(run)["finished"]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("how", ["script", "trace"])
def test_what_torchscript_calls_inside_is_a_blind_spot(
    tmp_path: Path, how: str, level: str
) -> None:
    def parameters(path: Path | None) -> list[torch.Tensor]:
        hide_the_past()
        inner = torch.jit.script(mlp()) if how == "script" else torch.jit.trace(mlp(), X)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), inner)
        with fpdiff.record(path, level=level) if path else nullcontext():
            train(model, steps=3)
        return list(model.parameters())

    unrecorded, one, other = (parameters(p) for p in (None, tmp_path / "a", tmp_path / "b"))
    for found in (one, other):
        assert all(map(torch.equal, unrecorded, found))
    assert fpdiff.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"
    said = info(tmp_path / "a")
    assert said["finished"]
    assert said["blind_spots"] == {"scripted module: the modules inside it": 3}
    events = read(tmp_path / "a")
    assert events.pick(kind="output", module="1") and events.pick(kind="parameter", module="1.0")
