"""The names of the kernels behind operators, from torch's profiler.

Without a device the profiler tells operators alone. Here each of them stands for a kernel that it
launches: all but what the profiler itself says of a device is put to the test.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flip import Fault, flipping
from recorded import Events, hide_the_past, info, mlp, recorded, train
from torch import nn
from torch._C import _autograd
from torch.autograd.profiler import profile, record_function
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import fpdiff
from fpdiff.fingerprint.record.ops import devicekernels
from fpdiff.fingerprint.record.ops.devicekernels import Activity, by_mark

TAKEN = "kernels of operators: the program's own profiler was running"


def mark(number: int, start: int, end: int, thread: int = 1) -> Activity:
    return Activity(f"fpdiff.{number}", 1000 + number, 0, thread, start, end, False)


def operator(id_: int, start: int, end: int, thread: int = 1) -> Activity:
    return Activity("aten::mm", id_, 0, thread, start, end, False)


def kernel(name: str, launched_by: int, start: int) -> Activity:
    return Activity(name, 7, launched_by, 99, start, start + 5, True)


def test_a_kernel_is_its_launchers_whenever_it_runs() -> None:
    marks = [mark(1, 10, 20), mark(2, 30, 40)]
    launchers = [operator(5, 12, 18), operator(6, 32, 38), operator(8, 33, 34)]
    kernels = [kernel("late", 5, 900), kernel("b", 8, 80), kernel("a", 6, 70)]
    assert by_mark([*kernels, *launchers, *marks]) == {1: ["late"], 2: ["a", "b"]}


def test_a_kernel_launched_by_the_marked_call_itself_is_its() -> None:
    assert by_mark([mark(3, 10, 20), kernel("own", 1003, 50)]) == {3: ["own"]}


def test_a_kernel_outside_of_all_marks_is_nobodys() -> None:
    launchers = [operator(5, 22, 28), operator(6, 12, 18, thread=2)]
    kernels = [kernel("after", 5, 30), kernel("other thread", 6, 30), kernel("unlinked", 0, 30)]
    assert by_mark([mark(1, 10, 20), *launchers, *kernels]) == {}


def test_threads_have_marks_of_their_own_and_the_innermost_counts() -> None:
    marks = [mark(1, 10, 90), mark(2, 20, 30), mark(3, 15, 60, thread=2)]
    launchers = [operator(5, 25, 26), operator(6, 50, 51), operator(8, 25, 26, thread=2)]
    kernels = [kernel("inner", 5, 100), kernel("outer", 6, 200), kernel("second", 8, 300)]
    found = by_mark([*marks, *launchers, *kernels])
    assert found == {2: ["inner"], 1: ["outer"], 3: ["second"]}


def test_what_the_device_runtime_did_on_the_host_launches_nothing() -> None:
    runtime = Activity("cudaLaunchKernel", 5, 1001, 1, 12, 13, False)
    assert by_mark([mark(1, 10, 20), runtime, kernel("k", 5, 30)]) == {}


# In a recording


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the profiler run without a device, and each operator launch a kernel of its name."""
    real = devicekernels._activities

    def with_kernels(result: Any) -> Iterable[Activity]:
        for activity in real(result):
            yield activity
            if activity.name.startswith("aten::"):
                yield activity._replace(launched_by=activity.id, thread=0, on_device=True)

    monkeypatch.setattr(devicekernels, "to_follow", lambda: {ProfilerActivity.CPU})
    monkeypatch.setattr(devicekernels, "_activities", with_kernels)
    hide_the_past()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(4, 4), nn.Linear(4, 2), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=False)
        x = checkpoint(self.drop, x, use_reentrant=True)
        x = x.clone()
        x[0].tanh_()
        return self.last(x)  # type: ignore[no-any-return]


def made(events: Events) -> Events:
    return Events(e for e in events if e.kind in ("result", "written") and e.op is not None)


@pytest.mark.usefixtures("on_host")
def test_each_call_of_an_operator_has_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    with recorded(tmp_path / "run", level="kernel") as events:
        train(net, steps=2, microbatches=2, optimizer=torch.optim.AdamW(net.parameters()))
    known = [e for e in made(events) if e.kernels is not None]
    assert {e.phase for e in known} >= {"forward", "backward", "recompute", "optimizer", "other"}
    assert {e.step for e in known} == {0, 1}
    for event in known:
        assert event.op is not None and event.kernels is not None
        assert event.kernels[0] == "aten::" + event.op.split(".")[1], event
    # What runs before a step has been opened is not followed.
    unknown = {e.op for e in made(events) if e.kernels is None}
    assert unknown <= {"aten.rand.generator", "aten.ones.default", "aten.zeros_like.default"}
    assert not [e for e in events if e.kernels is not None and e not in known]
    assert not any("kernels" in reason for reason in info(tmp_path / "run")["blind_spots"])
    assert not _autograd._profiler_enabled()


@pytest.mark.usefixtures("on_host")
def test_following_kernels_changes_no_bit_and_twins_are_silent(tmp_path: Path) -> None:
    ends = []
    for name in ("a", "b", None):
        hide_the_past()
        torch.manual_seed(0)
        net = Net()
        if name is None:
            train(net, optimizer=torch.optim.AdamW(net.parameters()))
        else:
            with fpdiff.record(tmp_path / name, level="kernel"):
                train(net, optimizer=torch.optim.AdamW(net.parameters()))
        ends.append([p.detach().numpy().tobytes() for p in net.parameters()])
    assert ends[0] == ends[1] == ends[2]
    assert fpdiff.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"


@pytest.mark.usefixtures("on_host")
def test_other_kernels_are_no_difference_and_explain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = devicekernels.by_mark

    def other(activities: Iterable[Activity]) -> dict[int, list[str]]:
        return {number: ["fast"] for number in real(activities)}

    op = "aten.addmm.default"
    fault = Fault(0, 1, op, "result", "out.0", 0, "forward", "2", 0)
    for name, names, flipped in (
        ("a", real, None),
        ("b", other, None),
        ("others", other, fault),
    ):
        hide_the_past()
        monkeypatch.setattr(devicekernels, "by_mark", names)
        with flipping(flipped), fpdiff.record(tmp_path / name, level="kernel"):
            train(mlp(), steps=1)
    assert fpdiff.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"
    (origin,) = fpdiff.compare(tmp_path / "a", tmp_path / "others").origins
    assert (origin.op, origin.module, origin.class_) == (op, "2", "kernel")
    assert origin.a is not None and origin.a["kernels"][0] == "aten::addmm"
    assert origin.b is not None and origin.b["kernels"] == ["fast"]
    assert any(
        text.startswith("other kernels ran: A aten::addmm") and text.endswith("; B fast")
        for text in origin.evidence
    )
    (origin,) = fpdiff.compare(tmp_path / "b", tmp_path / "others").origins
    assert "the same kernels ran: fast" in origin.evidence


@pytest.mark.usefixtures("on_host")
def test_the_programs_own_profiler_is_left_alone(tmp_path: Path) -> None:
    with profile() as own, recorded(tmp_path / "run", level="kernel") as events:
        train(mlp(), steps=2)
        assert _autograd._profiler_enabled()
    assert {e.kernels for e in events} == {None}
    assert info(tmp_path / "run")["blind_spots"][TAKEN] == 2
    assert "aten::addmm" in {e.name for e in own.function_events}
    assert not [e for e in own.function_events if e.name.startswith("fpdiff")]


@pytest.mark.usefixtures("on_host")
def test_the_programs_own_profiler_takes_over(tmp_path: Path) -> None:
    own, steps = profile(), list[int]()

    def each(*_: Any) -> None:
        if steps[-1] == 1:
            own.__enter__()
        if steps[-1] == 2:
            own.__exit__(None, None, None)

    model = mlp()
    model[1].register_forward_hook(each)
    with recorded(tmp_path / "run", level="kernel") as events:
        train(model, steps=3, each=steps.append)
    addmm = events.pick(op="aten.addmm.default", kind="result", phase="forward")
    assert [e.kernels is not None for e in addmm] == [True, True, True, False, False, False]
    names = [e.name for e in own.function_events]
    assert "aten::addmm" in names and not [n for n in names if n.startswith("fpdiff")]
    assert info(tmp_path / "run")["blind_spots"][TAKEN] == 2


@pytest.mark.usefixtures("on_host")
def test_a_mark_of_the_programs_may_span_steps(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", level="kernel") as events:
        model = mlp()
        train(model, steps=1)
        model(torch.ones(3, 4))  # Opens the next step, in which the mark begins.
        with record_function("epoch"):
            train(model, steps=3)
        train(model, steps=1)
    assert {e.step for e in events if e.kernels} == {0, 1, 2, 3, 4}


@pytest.mark.usefixtures("on_host")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Other tests' threads are idle.
def test_a_forked_child_is_not_followed(tmp_path: Path) -> None:
    def ends_well() -> bool:
        torch.ones(7).cosh()
        events = _autograd._disable_profiler().events()
        return "aten::cosh" not in {event.name() for event in events}

    codes = []

    def fork(*_: Any) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ends_well() else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    model = mlp()
    model[1].register_forward_hook(fork)
    with recorded(tmp_path / "run", level="kernel") as events:
        train(model, steps=1)
    assert codes == [0]
    assert all(e.kernels for e in events.pick(op="aten.addmm.default", phase="forward"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_of_a_device_are_named(tmp_path: Path) -> None:
    def run() -> list[bytes]:
        hide_the_past()
        torch.manual_seed(0)
        net = Net().cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(3, 4, device="cuda")).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu().numpy().tobytes() for p in net.parameters()]

    unrecorded = run()
    with fpdiff.record(tmp_path / "a", level="kernel"):
        assert run() == unrecorded
    with recorded(tmp_path / "b", level="kernel") as events:
        assert run() == unrecorded
    assert fpdiff.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"
    for step in (0, 1):
        own = Events(made(events).pick(step=step))
        assert all(e.kernels for e in own.pick(op="aten.addmm.default"))
        assert all(e.kernels for e in own.pick(op="aten.mm.default", phase="backward"))
        tanh = own.one(op="aten.tanh_.default", phase="forward").kernels
        assert tanh is not None and len(tanh) == 1 and "tanh" in tanh[0]
        assert not [e for e in own if any(n.startswith("fpdiff") for n in e.kernels or ())]
