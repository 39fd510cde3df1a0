import os
import shutil
import signal
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from recorded import Events, check_edges, hide_the_past, info, mlp, read, recorded, train
from torch import nn
from torch.utils.data import DataLoader

import fpdiff
from fpdiff.fingerprint.record.events import stepevents
from fpdiff.fingerprint.record.events.dataflow import Producers
from fpdiff.fingerprint.record.events.stepevents import StepEvents
from fpdiff.fingerprint.record.generators import states
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.state.optimizer import OptimizerHooks
from fpdiff.store.writer import RankWriter

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Steps


def test_a_step_ends_with_an_optimizers_step(run: Path) -> None:
    with recorded(run) as events:
        train(mlp(), steps=3)
    assert sorted({e.step for e in events}) == [0, 1, 2]
    for step in range(3):
        of_step = [e for e in events if e.step == step]
        assert of_step[0].phase == "init" and of_step[-1].phase == "optimizer"


def test_what_comes_after_the_last_step_is_one_more(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=2)
        with torch.no_grad():
            model(X)
    assert {e.phase for e in events if e.step == 2} == {"init", "eval"}


def test_without_an_optimizer_there_is_one_step(run: Path) -> None:
    with recorded(run) as events:
        for _ in range(3):
            mlp()(X)
    assert {e.step for e in events} == {0}


def test_counting_may_begin_anywhere(run: Path) -> None:
    with recorded(run, first_step=100) as events:
        train(mlp(), steps=2)
    assert sorted({e.step for e in events}) == [100, 101]


def test_a_window_of_steps(run: Path) -> None:
    with recorded(run, steps="1,3:5") as events:
        train(mlp(), steps=6)
    assert sorted({e.step for e in events}) == [1, 3, 4]
    assert events.column("seq") == list(range(len(events)))
    with recorded(run.with_name("all")) as everything:
        train(mlp(), steps=6)
    for step in (1, 3, 4):
        one, other = events.pick(step=step), everything.pick(step=step)
        assert [e.digest for e in one] == [e.digest for e in other]


def test_a_window_without_a_step_of_the_run_is_empty(run: Path) -> None:
    with recorded(run, steps="50") as events:
        train(mlp(), steps=2)
    assert events == []
    assert fpdiff.open_run(run).ranks[0].info["finished"]


def test_a_window_without_this_rank_leaves_no_run(run: Path) -> None:
    with fpdiff.record(run, ranks="1-3"):
        train(mlp(), steps=2)
    assert not run.exists()


def test_a_block_without_a_module_leaves_no_run(run: Path) -> None:
    with fpdiff.record(run):
        torch.ones(3).sum()
    assert not run.exists()


# The record as a whole


def test_the_same_training_twice_gives_identical_records(run: Path) -> None:
    other = run.with_name("other")
    for path in (run, other):
        torch.manual_seed(0)
        model = nn.Sequential(mlp(), nn.Dropout(0.5), nn.BatchNorm1d(2))
        with recorded(path):
            train(model, steps=3, optimizer=torch.optim.Adam(model.parameters()))
        del model
    verdict = fpdiff.compare(run, other)
    assert verdict.verdict == "identical"
    mine, yours = (fpdiff.open_run(p).ranks[0].steps().to_pylist() for p in (run, other))
    unseeded = ("content_generator",)  # Python's own generator is at another place.
    for a, b in zip(mine, yours, strict=True):
        assert {k: v for k, v in a.items() if k not in unseeded} == {
            k: v for k, v in b.items() if k not in unseeded
        }


def test_another_seed_gives_another_record(run: Path) -> None:
    other = run.with_name("other")
    for seed, path in enumerate((run, other)):
        model = mlp(seed)
        with recorded(path):
            train(model, steps=2)
        del model
    verdict = fpdiff.compare(run, other)
    assert verdict.verdict == "diverged" and verdict.first_step == 0


def test_a_record_is_whole(run: Path) -> None:
    with recorded(run):
        train(mlp(), steps=3)
    said = info(run)
    assert said["finished"] and said["rank"] == 0 and said["settings"]["level"] == "layer"
    assert said["environment"]["decides.torch"] == torch.__version__
    about = fpdiff.open_run(run).info
    assert about["exit_code"] is None and about["ended"] >= about["created"]


def test_a_record_can_be_read_while_it_grows(run: Path) -> None:
    model = mlp()
    with fpdiff.record(run):
        train(model, steps=2)
        events = read(run)
        assert sorted({e.step for e in events}) == [0, 1]
        assert fpdiff.open_run(run).ranks[0].open_journal
    assert read(run) == events
    assert not fpdiff.open_run(run).ranks[0].open_journal


def test_a_step_that_is_flushed_in_parts_is_the_same_step(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(run) as events:
        train(mlp(), steps=2)
    monkeypatch.setattr(stepevents, "FLUSH_EVENTS", 3)
    other = run.with_name("other")
    with recorded(other, rehash=True) as again:
        train(mlp(), steps=2)
    names = ("where", "digest", "reads", "value")
    assert events.pick(phase="forward").names(*names) == again.pick(phase="forward").names(*names)
    assert fpdiff.compare(run, other).verdict == "identical"


def test_edges_are_checked_by_these_tests(run: Path) -> None:
    with recorded(run) as events:
        mlp()(X)
    broken = Events(e for e in events if e.seq > 3)
    with pytest.raises(AssertionError):
        check_edges(broken)


# Failures


BROKEN: list[tuple[Any, str]] = [
    (StepEvents, "emit"),
    (StepEvents, "emit_tensor"),
    (Recorder, "optimizer_stepped"),
    (Producers, "find"),
    (RankWriter, "flush"),
    (OptimizerHooks, "_record_gradients"),
]


@pytest.mark.parametrize(("owner", "name"), BROKEN)
@pytest.mark.parametrize("after", [0, 5, 30])
def test_an_error_of_ours_stops_the_recording_and_nothing_else(
    run: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int
) -> None:
    torch.manual_seed(1)
    expected = nn.Sequential(mlp(), nn.Dropout(0.5))
    train(expected, steps=4)
    real, calls = getattr(owner, name), 0

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise ZeroDivisionError("a bug of ours")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, sometimes)
    torch.manual_seed(1)
    model = nn.Sequential(mlp(), nn.Dropout(0.5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fpdiff.record(run):
            train(model, steps=4)
    assert same(parameters(model), parameters(expected))
    if calls > after:
        assert [str(w.message).partition(":")[0] for w in caught] == ["fpdiff"]
        said = info(run)
        assert not said["finished"] and said["blind_spots"]["recording stopped"] == 1
        assert "ZeroDivisionError: a bug of ours (test_recorder.py:" in said["stopped"]
        read(run)  # What was recorded before is readable.
    else:
        assert caught == [] and info(run)["finished"]


def test_what_a_rank_says_of_itself_may_fail_too(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(RankWriter, "write_info", broken)
    said = pytest.warns(UserWarning, match="the rank's file could not be updated: a bug of ours")
    with fpdiff.record(run), said:
        train(mlp(), steps=2)


def test_a_full_disk_is_told_without_a_place_in_our_code(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RankWriter, "flush", full)
    said = pytest.warns(UserWarning, match="stopped in step 0: OSError.*No space left")
    with fpdiff.record(run), said:
        train(mlp(), steps=2)
    assert info(run)["stopped"].endswith("No space left on device")


def test_an_exception_of_the_program_ends_the_record_in_good_order(run: Path) -> None:
    with pytest.raises(KeyError, match="mine"), fpdiff.record(run):
        train(mlp(), steps=2)
        raise KeyError("mine")
    assert info(run)["finished"] and len(read(run)) > 0


def test_a_rank_that_another_process_records_is_left_out(run: Path) -> None:
    with fpdiff.record(run):
        (run / "journal" / "rank=00000").mkdir(parents=True)
        with pytest.warns(UserWarning, match=r"this process \(pid \d+\) is left out: rank 0"):
            mlp()(X)
        mlp()(X)


# Children


class _Transforms(torch.utils.data.Dataset[torch.Tensor]):
    """Runs a module in its worker."""

    def __init__(self) -> None:
        self.module = nn.Linear(4, 4)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.module(X[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("before", [True, False])
def test_data_workers_are_not_recorded(run: Path, before: bool) -> None:
    model = nn.Linear(4, 1)
    loader = DataLoader(_Transforms(), num_workers=1, multiprocessing_context="fork")
    with recorded(run) as events:
        if before:
            model(X)
        for batch in loader:
            model(batch)
    assert info(run)["finished"]
    assert len(events.pick(kind="output")) == 4 + before
    assert list(fpdiff.open_run(run).ranks) == [0]


def test_a_forked_child_does_not_write(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        model(X)
        child = os.fork()
        if child == 0:
            try:
                model(X)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        model(X)
    assert events.pick(kind="output", module="").column("microbatch") == [0, 1]


# What recording leaves alone


def test_generators_are_where_they_would_be(run: Path) -> None:
    def after(record: bool) -> Any:
        torch.manual_seed(5)
        model = nn.Sequential(mlp(), nn.Dropout(0.5))
        if record:
            with recorded(run, stats=True, rehash=True):
                train(model, steps=2)
        else:
            train(model, steps=2)
        return dict(states())["torch.cpu"]

    assert after(False) == after(True)


def test_closing_twice_is_closing_once(run: Path) -> None:
    from fpdiff.fingerprint.record import current

    with fpdiff.record(run):
        mlp()(X)
        assert current.script is not None
        current.script.recorder.close()
        before = info(run)
        mlp()(X)
    assert info(run) == before and before["finished"]


def test_a_step_that_an_exception_cuts_short_is_not_said_to_have_ended(tmp_path: Path) -> None:
    hide_the_past()
    model = mlp()
    with pytest.raises(RuntimeError, match="away"), fpdiff.record(tmp_path / "r"):
        train(model, steps=2)
        model(torch.ones(3, 4))
        raise RuntimeError("away")
    steps = fpdiff.open_run(tmp_path / "r").ranks[0].steps()
    assert steps["ended"].to_pylist() == [True, True, False]


class Preempted(Exception):
    """What a handler of the program's raises."""


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("raised", [Preempted, KeyboardInterrupt])
@pytest.mark.parametrize("owner", [StepEvents, RankWriter])
def test_what_a_signals_handler_raises_in_a_hook_is_the_programs(
    run: Path, level: str, raised: type[BaseException], owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(*given: object) -> None:
        raise raised("now")

    name = "next_seq" if owner is StepEvents else "flush"
    real = getattr(owner, name)

    def signalled(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        signal.raise_signal(signal.SIGUSR1)
        return real(*args, **kwargs)

    before = signal.signal(signal.SIGUSR1, handler)
    said = pytest.warns(UserWarning, match=rf"step 1: a signal cut it short \({raised.__name__}\)")
    try:
        with fpdiff.record(run, level=level), said:
            model = mlp()
            optimizer = train(model, steps=1)
            monkeypatch.setattr(owner, name, signalled)
            with pytest.raises(raised, match="now"):
                train(model, steps=1, optimizer=optimizer)
            train(model, steps=2, optimizer=optimizer)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not info(run)["finished"] and {e.step for e in read(run)} == {0}


THROWN = Preempted("now")


def throw(*_: object) -> None:
    raise THROWN


@pytest.mark.parametrize("level", ["layer", "op"])
def test_what_is_thrown_into_a_hook_is_the_programs(
    run: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `PyThreadState_SetAsyncExc` does, by which libraries end what takes too long."""
    # It comes where no code of the program's runs.
    ours = FunctionType(throw.__code__, {"__name__": "fpdiff.thrown_into", "THROWN": THROWN})
    said = pytest.warns(UserWarning, match=r"step 1: a signal cut it short \(Preempted\)")
    with fpdiff.record(run, level=level), said:
        model = mlp()
        optimizer = train(model, steps=1)
        with monkeypatch.context() as patch, pytest.raises(Preempted, match="now"):
            patch.setattr(StepEvents, "next_seq", ours)
            train(model, steps=1, optimizer=optimizer)
        train(model, steps=2, optimizer=optimizer)
    assert not info(run)["finished"]


def test_a_program_that_shows_warnings_itself_and_fails_is_left_in_peace(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def show(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug of the program's")

    monkeypatch.setattr(warnings, "showwarning", show)
    with recorded(run), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        fpdiff.step("x")  # type: ignore[arg-type]
        train(mlp(), steps=1)
    assert "fpdiff: step('x') is ignored: not an integer" in capsys.readouterr().err


@pytest.mark.parametrize("steps", [3, 120])
def test_a_run_that_is_removed_meanwhile_is_not_made_anew(run: Path, steps: int) -> None:
    def removed() -> None:
        with fpdiff.record(run):
            optimizer = train(model := mlp(), steps=1)
            shutil.rmtree(run)
            train(model, steps=steps, optimizer=optimizer)  # 100 steps are a segment.

    with pytest.warns(UserWarning) as said:
        removed()
    stopped, ended = (str(w.message) for w in said)
    assert "recording stopped" in stopped and f"cannot note the end of {run}" in ended
    assert not run.exists()
