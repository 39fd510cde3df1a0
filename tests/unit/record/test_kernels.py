"""Kernels that Triton launches as events, in Triton's interpreter."""

import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import Event, Events, hide_the_past, info, recorded, train
from torch import nn

import fpdiff

if sys.platform != "linux":
    pytest.skip("Triton has wheels for Linux only", allow_module_level=True)

with pytest.MonkeyPatch.context() as _patch:
    _patch.setenv("TRITON_INTERPRET", "1")

    import triton
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit  # type: ignore[untyped-decorator]
    def scale(x_ptr, out_ptr, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < count)
        tl.store(out_ptr + at, x * factor, mask=at < count)

    @triton.jit  # type: ignore[untyped-decorator]
    def add(x_ptr, y_ptr, BLOCK: tl.constexpr, KIND: tl.constexpr = None):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at) + tl.load(y_ptr + at))

    @triton.jit  # type: ignore[untyped-decorator]
    def add_pair(pair, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(pair[1] + at, tl.load(pair[0] + at) + 1.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def copy(source, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, BLOCK)
        tl.store(out_ptr + at, source.load([0]))


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    hide_the_past()


def scaled(x: torch.Tensor, factor: float = 0.5, block: int = 4, **options: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), block),)
    scale[grid](x, out, x.numel(), factor, BLOCK=block, **options)
    return out


class Body(nn.Module):
    """A module whose forward is a function that its parameter goes through."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * self.body(x)  # type: ignore[no-any-return]


def run(tmp_path: Path, body: Any, *, level: str = "kernel", steps: int = 1, **how: Any) -> Events:
    """Record training steps of a Body."""
    with recorded(tmp_path / "run", level=level, **how) as events:
        train(Body(body), steps=steps)
    assert "stopped" not in info(tmp_path / "run")
    return events


def launches(events: Events, name: str, **match: Any) -> Events:
    return events.pick(op=f"triton.{name}", **match)


def read_by(events: Events, event: Event) -> list[tuple[str, str | None, str]]:
    return [(e.kind, e.op, e.slot) for e in events.read_by(event)]


def test_a_launch_reads_what_made_its_inputs_and_makes_what_it_writes(tmp_path: Path) -> None:
    events = run(tmp_path, lambda x: scaled(x.tanh()))
    assert launches(events, "scale").names("kind", "slot", "phase", "module_class") == [
        ("arguments", "count,factor,BLOCK,grid", "forward", "Body"),
        ("written", "out_ptr", "forward", "Body"),
    ]
    written = launches(events, "scale", kind="written").one()
    assert read_by(events, written) == [
        ("result", "aten.tanh.default", "out.0"),
        ("arguments", "triton.scale", "count,factor,BLOCK,grid"),
    ]
    product = events.one(op="aten.mul.Tensor", kind="result", phase="forward")
    assert written in events.read_by(product)
    assert not events.pick(kind="uninitialised")


def test_other_constants_and_scalars_are_other_arguments(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        scaled(x)
        scaled(x)
        scaled(x, block=8)
        scaled(x, factor=2.0)
        scaled(x, num_warps=2)
        return x

    told = launches(run(tmp_path, body), "scale", kind="arguments")
    assert told.column("occurrence") == [0, 1, 2, 3, 4]
    assert told[0].digest == told[1].digest
    assert len({event.digest for event in told}) == 4
    assert told[4].slot == "count,factor,BLOCK,num_warps,grid"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tl.float32, tl.bfloat16),
        (torch.float32, torch.bfloat16),
        (tl.constexpr(1), tl.constexpr(2)),
        (np.float32(1), np.float32(2)),
        ((1, None), (2, None)),
        (scale, add),
        ("sum", "mean"),
    ],
)
def test_constants_of_any_kind_are_told_apart(tmp_path: Path, one: Any, other: Any) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        for kind in (one, other, one):
            add[(3,)](x.clone(), x, BLOCK=4, KIND=kind)
        return x

    told = launches(run(tmp_path, body), "add", kind="arguments")
    assert told[0].digest == told[2].digest != told[1].digest


def test_what_a_kernel_only_reads_is_not_written(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        sum_, one = torch.zeros(12), torch.ones(12)
        add[(3,)](sum_, one, BLOCK=4)
        add[(3,)](sum_, sum_, BLOCK=4)
        return x + sum_.view(3, 4)

    written = launches(run(tmp_path, body), "add", kind="written")
    assert written.column("slot") == ["x_ptr", "x_ptr,y_ptr"]
    assert written[0].seq in written[1].reads


def test_a_parameter_once_written_is_written_every_time(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for summand in (torch.zeros(12), torch.ones(12), torch.zeros(12)):
            add[(3,)](x, summand, BLOCK=4)
        return x

    written = launches(run(tmp_path, body), "add", kind="written")
    assert written.names("slot", "occurrence") == [("x_ptr", 1), ("x_ptr", 2)]
    assert written[0].digest == written[1].digest


def test_a_tensor_that_no_event_is_of_is_an_input(tmp_path: Path) -> None:
    constant = torch.arange(12.0)

    def body(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        add[(3,)](x, constant, BLOCK=4)
        return x

    events = run(tmp_path, body)
    assert launches(events, "add", kind="input").column("slot") == ["y_ptr"]


def test_tensors_in_tuples_and_below_descriptors(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        out, last = torch.empty(12), torch.empty(4)
        add_pair[(3,)]((x, out), BLOCK=4)
        copy[(1,)](TensorDescriptor(out, [12], [1], [4]), last, BLOCK=4)
        return x + last

    events = run(tmp_path, body)
    pair = launches(events, "add_pair", kind="written").one()
    assert pair.slot == "pair.1"
    copied = launches(events, "copy", kind="written").one()
    assert copied.slot == "out_ptr" and pair.seq in copied.inputs


def test_rehash_notices_what_was_overwritten_before_a_launch(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        y, out = x.tanh(), torch.empty(3, 4)
        y.numpy()[0, 0] = 7
        scale[(3,)](y, out, 12, 0.5, BLOCK=4)
        return out

    events = run(tmp_path, body, rehash=True)
    rewrite = launches(events, "scale", kind="rewrite").one()
    assert rewrite.slot == "x_ptr"
    assert rewrite.seq in launches(events, "scale", kind="written").one().inputs


def test_every_phase_has_its_launches(tmp_path: Path) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return scaled(x)

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> Any:
            return scaled(gradients[0].contiguous())

    class Halve(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            weight = self.param_groups[0]["params"][0]
            scale[(1,)](weight, weight, 4, 0.5, BLOCK=4)

    model = nn.Sequential(Body(lambda x: x), nn.Flatten())
    between = torch.ones(4)
    with recorded(tmp_path / "run", level="kernel") as events:
        for _ in range(2):
            optimizer = Halve(model.parameters())
            loss = Scaled.apply(model(torch.ones(3, 4))).sum()  # type: ignore[no-untyped-call]
            loss.backward()
            optimizer.step()
            scaled(between)
            with torch.no_grad():
                model(torch.ones(3, 4))
    assert launches(events, "scale", kind="written", step=1).names("phase", "module", "slot") == [
        ("other", "", "out_ptr"),
        ("other", "", "out_ptr"),
        ("backward", "", "out_ptr"),
        ("optimizer", "0", "x_ptr,out_ptr"),
    ]
    updated = events.pick(kind="parameter", phase="optimizer", step=1).one()
    assert ("written", "triton.scale", "x_ptr,out_ptr") in read_by(events, updated)


def test_a_kernel_in_a_custom_operator_is_what_the_operator_read(tmp_path: Path) -> None:
    @torch.library.custom_op("fpdiff_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return scaled(x.exp(), 2.0)

    events = run(tmp_path, lambda x: doubled(x.tanh()))
    assert launches(events, "scale").names("kind", "slot") == [
        ("arguments", "count,factor,BLOCK,grid"),
        ("input", "x_ptr"),
        ("written", "out_ptr"),
    ]
    made = launches(events, "scale", kind="input").one()
    assert read_by(events, made)[0] == ("result", "aten.tanh.default", "out.0")
    written = launches(events, "scale", kind="written").one()
    result = events.one(op="fpdiff_tests.doubled.default", kind="result")
    assert written.seq in result.inputs and written.digest == result.digest


def test_a_triton_operator_that_writes_its_argument(tmp_path: Path) -> None:
    @torch.library.triton_op("fpdiff_tests::add_", mutates_args={"x"})
    def add_(x: torch.Tensor, y: torch.Tensor) -> None:
        torch.library.wrap_triton(add)[(3,)](x, y, BLOCK=4)

    def body(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        add_(y, x)
        return y

    events = run(tmp_path, body)
    first, second = (e for e in events.pick(kind="written", phase="forward"))
    assert (first.op, first.slot) == ("triton.add", "x_ptr")
    assert (second.op, second.slot) == ("fpdiff_tests.add_.default", "x")
    assert first.seq in second.inputs and first.digest == second.digest


def test_an_autotuners_trials_are_not_events(tmp_path: Path) -> None:
    trials = []

    def bench(call: Any, quantiles: Any) -> list[float]:
        for _ in range(3):
            call()
            torch.ones(1).add_(1)
        trials.append(call)
        return [float(len(trials))] * 3

    tuned = triton.autotune(
        [triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["count"], do_bench=bench
    )(scale)

    def body(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        tuned[(3,)](x, out, 12, 0.5)
        return out

    events = run(tmp_path, body, steps=2)
    assert len(trials) == 2
    for step in (0, 1):
        found = launches(events, "scale", step=step)
        assert found.names("kind", "occurrence") == [("arguments", 0), ("written", 0)]
        assert "BLOCK" in found[0].slot
    assert not events.pick(op="aten.add_.Tensor", phase="forward")
    assert info(tmp_path / "run")["blind_spots"] == {"trial of a Triton autotuner": 2}


def test_outside_the_window_nobody_knows_what_was_written(tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    def make(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.clone())
        return x

    def write(x: torch.Tensor) -> torch.Tensor:
        add[(3,)](kept[0], x.contiguous(), BLOCK=4)
        return x

    model = nn.Sequential(Body(make), Body(write), Body(lambda x: x + kept[0].tanh()))
    with recorded(tmp_path / "run", level="kernel", modules="[02]") as events:
        train(model, steps=1)
    assert not launches(events, "add")
    assert events.one(op="aten.tanh.default", kind="input").slot == "self"


def test_statistics_of_what_a_kernel_wrote(tmp_path: Path) -> None:
    events = run(tmp_path, lambda x: scaled(torch.full_like(x, 4.0)), stats=True)
    written = launches(events, "scale", kind="written").one()
    assert (written.absmax, written.nonfinite) == (2.0, 0)


def test_a_large_tensor_that_a_kernel_wrote_is_digested_anew(tmp_path: Path) -> None:
    """Where no version counts the write and a sample of the bytes misses it."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.same = nn.Parameter(torch.ones(1)), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.same(x * self.weight)
            fifth = x.t().flatten()[5:6]
            scale[(1,)](fifth, fifth, 1, 3.0, BLOCK=1)
            return self.same(x)  # type: ignore[no-any-return]

    with recorded(tmp_path / "run", level="kernel") as events, torch.no_grad():
        Twice()(torch.ones(200, 200).t())
    first, second = events.pick(kind="output", module="same").column("digest")
    assert first != second


def test_another_thread_is_a_blind_spot(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: scale[(3,)](x, x.clone(), 12, 0.5, BLOCK=4))
        thread.start()
        thread.join()
        return x

    assert not launches(run(tmp_path, body), "scale")
    assert info(tmp_path / "run")["blind_spots"]["thread not followed"] == 1


def test_at_rung_op_a_launch_is_a_blind_spot_and_its_copies_are_no_ops(tmp_path: Path) -> None:
    events = run(tmp_path, lambda x: scaled(x), level="op")
    assert not launches(events, "scale")
    assert not events.pick(op="aten.copy_.default")
    told = {"Triton launch, recorded at the rung kernel": 1}
    assert info(tmp_path / "run")["blind_spots"] == told


def methods() -> list[Any]:
    return [JITFunction.run, InterpretedFunction.run, Autotuner._bench]


@pytest.mark.parametrize("level", ["step", "op", "kernel"])
def test_triton_is_as_before_in_the_end(tmp_path: Path, level: str) -> None:
    before, finders = methods(), sys.meta_path.copy()
    with fpdiff.record(tmp_path / "run", level=level):
        assert (methods() == before) is (level == "step")
    assert methods() == before
    assert sys.meta_path == finders


def test_somebody_elses_wrapper_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    with fpdiff.record(tmp_path / "run", level="kernel"):
        ours = InterpretedFunction.run

        def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(self)
            return ours(self, *args, **kwargs)

        monkeypatch.setattr(InterpretedFunction, "run", theirs)
    assert InterpretedFunction.run is theirs
    assert scaled(torch.ones(4)).tolist() == [0.5] * 4
    assert len(calls) == 1


def test_a_kernel_that_fails_fails_as_before(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(TypeError, match="factor"):
            scale[(1,)](x, x.clone(), 4, BLOCK=4)
        return scaled(x)

    events = run(tmp_path, body)
    assert launches(events, "scale", kind="written").column("occurrence") == [1]


def test_an_error_of_ours_does_not_reach_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpdiff.fingerprint.record.ops import kernels

    def broken(*args: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(kernels, "_split", broken)
    with pytest.warns(match="recording stopped"), fpdiff.record(tmp_path / "run", level="kernel"):
        found = Body(scaled)(torch.ones(3, 4))
    assert found.tolist() == [[0.5] * 4] * 3
    assert "no room" in info(tmp_path / "run")["stopped"]


def test_no_tensor_is_kept_alive(tmp_path: Path) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        out = scaled(x)
        seen.append(weakref.ref(out))
        return out + 1

    with fpdiff.record(tmp_path / "run", level="kernel"):
        train(Body(body), steps=1)
        assert seen[0]() is None
