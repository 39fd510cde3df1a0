"""Runs whose model launches Triton kernels, in real processes and Triton's interpreter."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import (
    PROGRAMS,
    PYTHON,
    Jobs,
    Preloaded,
    compare_json,
    parameters,
    rank_info,
    record_well,
    run,
)
from recorded import read

import fpdiff
from fpdiff.fingerprint.bisect.verdict import Verdict

if sys.platform != "linux":
    pytest.skip("Triton has wheels for Linux only", allow_module_level=True)

PROGRAM = PROGRAMS / "train_triton.py"
WRONG = ("--wrong", 1)
FORKS: dict[str, tuple[str, tuple[object, ...]]] = {
    "twin": ("kernel", ()),
    "wrong": ("kernel", WRONG),
    "block": ("kernel", ("--block", 8)),
    "op": ("op", ()),
    "op wrong": ("op", WRONG),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module", autouse=True)
def jobs(folder: Path) -> Iterator[Jobs]:
    """Job X records to folder/X and returns what was printed; so does `unrecorded`.

    `a` is started as a user does, and imports Triton when it is being watched already; the others
    are forks that have imported it before, recorded from code.
    """
    jobs, preloaded = Jobs(), Preloaded("triton")
    jobs.add("a", record_well, folder / "a", [*PYTHON, PROGRAM], "--level", "kernel")
    jobs.add("unrecorded", run, [*PYTHON, PROGRAM])
    for name, (level, options) in FORKS.items():
        record = {"path": str(folder / name), "level": level}
        output = folder / f"{name}.txt"
        jobs.add(name, preloaded.run, PROGRAM, *options, output=output, record=record)
    record = {"path": str(folder / "marks"), "level": "kernel"}
    program, output = PROGRAMS / "long_marks.py", folder / "marks.txt"
    jobs.add("marks", preloaded.run, program, output=output, record=record)
    yield jobs
    jobs.close()
    preloaded.close()


@pytest.fixture
def compared(folder: Path, jobs: Jobs) -> Any:
    def compare(a: str, b: str) -> Verdict:
        assert jobs[a] and jobs[b]
        return fpdiff.compare(folder / a, folder / b)

    return compare


def test_a_recorded_run_computes_the_same_and_says_no_more(jobs: Jobs) -> None:
    printed = jobs["unrecorded"].stdout
    assert jobs["a"].stdout == jobs["twin"] == jobs["op"] == printed
    talk = jobs["a"].stderr.splitlines()
    assert len(talk) == 1 and talk[0].startswith("fpdiff: recorded to")
    assert jobs["unrecorded"].stderr == ""


def test_twins_are_identical(compared: Any) -> None:
    verdict = compared("a", "twin")
    assert (verdict.verdict, verdict.notes, verdict.blind_spots) == ("identical", [], [])
    assert verdict.compared.rung == "kernel"


def test_launches_are_events_of_their_modules(folder: Path, jobs: Jobs) -> None:
    assert jobs["a"]
    events = read(folder / "a").pick(op="triton.scale", step=1)
    assert events.names("phase", "module", "kind", "slot", "occurrence") == [
        ("forward", "1", "arguments", "count,factor,BLOCK,grid", 0),
        ("forward", "1", "written", "out_ptr", 0),
        ("forward", "1", "arguments", "count,factor,BLOCK,grid", 1),
        ("forward", "1", "written", "x_ptr,out_ptr", 1),
        ("backward", "1", "arguments", "count,factor,BLOCK,grid", 0),
        ("backward", "1", "written", "out_ptr", 0),
    ]


def test_a_launch_that_writes_another_bit_is_named_exactly(compared: Any) -> None:
    verdict = compared("a", "wrong")
    (origin,) = verdict.origins
    assert (origin.step, origin.phase, origin.module) == (1, "forward", "1")
    assert (origin.op, origin.occurrence, origin.slot) == ("triton.scale", 1, "x_ptr,out_ptr")
    assert origin.class_ == "kernel" and "recorded op by op" in origin.strength
    assert origin.reaches[0] == "the loss"
    assert verdict.rank_steps[0].carriers == verdict.rank_steps[0].mismatched - 1
    assert "--level kernel --steps 1 --rehash --stats" in verdict.next


def test_another_block_size_is_another_argument(compared: Any) -> None:
    verdict = compared("a", "block")
    assert {o.class_ for o in verdict.origins} == {"arguments"}
    assert {o.op for o in verdict.origins} == {"triton.scale"}
    assert "autotuner" in verdict.origins[0].hint
    assert (verdict.first_step, verdict.effects.parameters) == (0, None)


def test_at_rung_op_the_write_is_nobodys_and_the_next_rung_is_kernel(
    folder: Path, jobs: Jobs, compared: Any
) -> None:
    verdict = compared("op", "op wrong")
    assert verdict.origins[0].step == 1 and verdict.origins[0].module == "1"
    assert verdict.origins[0].class_ == "computation"
    reason = "Triton launch, recorded at the rung kernel"
    assert verdict.blind_spots == [{"reason": reason, "a": 9, "b": 9}]
    assert "--level kernel --steps 1 --" in verdict.next
    assert "stopped" not in rank_info(folder / "op")


def test_a_run_of_rung_op_compares_with_one_of_rung_kernel(compared: Any) -> None:
    verdict = compared("op", "a")
    assert (verdict.verdict, verdict.compared.rung) == ("identical", "op")
    assert compared("op", "wrong").origins[0].module == "1"


def test_the_command_line_knows_the_rung(folder: Path, jobs: Jobs) -> None:
    assert jobs["a"] and jobs["wrong"]
    verdict = compare_json(folder / "a", folder / "wrong")
    assert verdict["compared"]["rung"] == "kernel"


def test_marks_of_the_program_outlive_the_profiler_of_a_step(folder: Path, jobs: Jobs) -> None:
    assert jobs["marks"].splitlines()[-1] == "ended"
    assert "stopped" not in rank_info(folder / "marks")
    assert fpdiff.open_run(folder / "marks").ranks[0].steps()["step"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_kernels_on_a_device_are_recorded_alike(
    tmp_path: Path, folder: Path, jobs: Jobs
) -> None:
    command = [*PYTHON, PROGRAM, "--device", "cuda"]
    printed = {}
    for name, options in (("a", ()), ("twin", ()), ("wrong", WRONG)):
        recorded = record_well(tmp_path / name, [*command, *options], "--level", "kernel")
        printed[name] = parameters(recorded.stdout)
    assert printed["a"] == parameters(run(command).stdout)
    assert fpdiff.compare(tmp_path / "a", tmp_path / "twin").verdict == "identical"
    (origin,) = fpdiff.compare(tmp_path / "a", tmp_path / "wrong").origins
    assert (origin.step, origin.op, origin.occurrence) == (1, "triton.scale", 1)
    shown = ("step", "phase", "module", "kind", "slot", "occurrence", "dtype", "shape")
    on_device = read(tmp_path / "a").pick(op="triton.scale").names(*shown)
    assert jobs["a"] and on_device == read(folder / "a").pick(op="triton.scale").names(*shown)
