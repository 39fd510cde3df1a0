"""The line that a backward op is told to be at: that of the forward op it is the backward of."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from flip import Fault, places
from processes import FPDIFF, PROGRAMS, Jobs, Preloaded, compare, compare_json, run
from recorded import Events, read

import fpdiff

PROGRAM = PROGRAMS / "train_lines.py"
DEVICE = PROGRAMS / "device_thread.py"


def marked(program: Path) -> dict[str, str]:
    """Return what the source of ops in the backward must be, by their name."""
    found = {}
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if mark := re.search(r"# ([-=])> (\w+)$", line):
            prefix = "backward of " if mark[1] == "-" else ""
            found[mark[2]] = f"{prefix}{program.name}:{number}"
    return found


def short(source: str | None) -> str | None:
    """Return a source without the program's folder, which is told from the working directory."""
    return source and re.sub(r"\S*/", "", source)


def base(op: str | None) -> str:
    return op.split(".")[1] if op else ""


SOURCES = marked(PROGRAM)
FAULTY = ("mm", "silu_backward", "tanh_backward", "cosh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@pytest.fixture(scope="module", autouse=True)
def jobs(folder: Path) -> Iterator[Jobs]:
    """Job X records to folder/X; one of FAULTY with a bit flipped in that op's backward."""
    jobs, preloaded = Jobs(), Preloaded()

    def recorded(name: str, program: Path, fault: Fault | None = None) -> str:
        return preloaded.run(
            program,
            output=folder / f"{name}.txt",
            record={"path": str(folder / name), "level": "op"},
            fault=None if fault is None else asdict(fault),
        )

    def faulty(name: str) -> str:
        assert jobs["a"]
        return recorded(name, PROGRAM, faults(folder / "a")[name])

    jobs.add("unrecorded", preloaded.run, PROGRAM, output=folder / "unrecorded.txt")
    jobs.add("device", recorded, "device", DEVICE)
    for name in ("a", "twin"):
        jobs.add(name, recorded, name, PROGRAM)
    for name in FAULTY:
        jobs.add(name, faulty, name)
    yield jobs
    jobs.close()
    preloaded.close()


def faults(path: Path) -> dict[str, Fault]:
    """Return for each op a place in the backward of step 1, its last one."""
    return {base(f.op): f for f in places(path) if (f.phase, f.step) == ("backward", 1)}


def backward(path: Path) -> Events:
    """Return what the backward of the last step made."""
    return Events(e for e in read(path).pick(phase="backward", step=1) if e.op is not None)


def test_recording_lines_changes_nothing(jobs: Jobs) -> None:
    assert jobs["unrecorded"].startswith("params")
    assert jobs["a"] == jobs["twin"] == jobs["unrecorded"]


def test_every_backward_op_has_the_line_of_its_forward_op(folder: Path, jobs: Jobs) -> None:
    assert jobs["a"]
    events = backward(folder / "a")
    told = {op: {short(e.source) for e in events if base(e.op) == op} for op in SOURCES}
    assert told == {op: {source} for op, source in SOURCES.items()}


def test_what_accumulates_a_gradient_has_its_parameter_and_no_line(
    folder: Path, jobs: Jobs
) -> None:
    assert jobs["a"]
    added = backward(folder / "a").pick(microbatch=1, module="norm", op="aten.add_.Tensor")
    assert added.column("source") == [None, None]  # Weight and bias.


def test_a_recomputation_and_the_optimizer_have_lines_of_their_own(
    folder: Path, jobs: Jobs
) -> None:
    assert jobs["a"]
    events = Events(e for e in read(folder / "a") if e.op is not None)
    (silu,) = {e.source for e in events.pick(phase="recompute") if base(e.op) == "silu"}
    assert short(silu) == SOURCES["silu_backward"].removeprefix("backward of ")
    assert {e.source for e in events.pick(phase="recompute") if base(e.op) == "softplus"} == {None}
    (step,) = set(events.pick(phase="optimizer").column("source"))
    assert "optimizer.step()" in PROGRAM.read_text().splitlines()[int(step.rpartition(":")[2]) - 1]


def test_twins_are_silent(folder: Path, jobs: Jobs) -> None:
    assert jobs["a"] and jobs["twin"]
    verdict = fpdiff.compare(folder / "a", folder / "twin")
    assert (verdict.verdict, verdict.notes) == ("identical", [])


@pytest.mark.parametrize("name", FAULTY)
def test_an_origin_in_the_backward_is_named_with_its_line(
    folder: Path, jobs: Jobs, name: str
) -> None:
    assert jobs[name]
    (origin,) = fpdiff.compare(folder / "a", folder / name).origins
    fault = faults(folder / "a")[name]
    assert (origin.op, origin.occurrence, origin.module) == (
        fault.op,
        fault.occurrence,
        fault.module,
    )
    assert (origin.phase, short(origin.source)) == ("backward", SOURCES[name])


def test_text_json_and_sql_say_the_line(folder: Path, jobs: Jobs) -> None:
    assert jobs["a"] and jobs["mm"]
    (source,) = set(backward(folder / "a").pick(op="aten.mm.default").column("source"))
    assert short(source) == SOURCES["mm"]
    text = compare(folder / "a", folder / "mm").stdout
    assert f"line{source}".replace(" ", "") in re.sub(r"\s", "", text)
    assert compare_json(folder / "a", folder / "mm")["origins"][0]["source"] == source
    query = "SELECT DISTINCT source FROM sites WHERE op = 'aten.mm.default'"
    rows = run([*FPDIFF, "sql", folder / "a", query, "--format", "csv"]).stdout.splitlines()
    assert rows == ["source", source]


def test_autograds_own_threads_tell_module_and_line_alike(folder: Path, jobs: Jobs) -> None:
    assert jobs["device"] == "2 threads\n"
    events = backward(folder / "device")
    sources = marked(DEVICE)
    told = {op: {(e.module, short(e.source)) for e in events if base(e.op) == op} for op in sources}
    modules = {"pow": "cubed", "cos": "waved", "mm": "linear"}
    assert told == {op: {(modules[op], source)} for op, source in sources.items()}
