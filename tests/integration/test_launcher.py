"""`fpdiff record -- CMD`: the command's own ways pass through, and only what trains is recorded."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from processes import (
    FPDIFF,
    PROGRAMS,
    PYTHON,
    TINY,
    TORCHRUN,
    TRAIN_GPT,
    Jobs,
    Result,
    assert_fails,
    compare_json,
    parameters,
    rank_info,
    record,
    recording,
    run,
    run_info,
    start,
)

from fpdiff.store.run import Run

TRAIN = [*PYTHON, TINY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launcher")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    """Start what the tests below look at, two at a time; job X records to folder/X."""
    jobs = Jobs()

    def add(name: str, *command: object, options: tuple[object, ...] = (), **how: object) -> None:
        jobs.add(name, record, folder / name, command, *options, **how)

    _write_package(folder)
    add("plain", *TRAIN, "--stderr", "to stderr\n", env={"PYTHONPATH": folder / "site"})
    jobs.add("unrecorded", run, TRAIN)
    add("raises", *TRAIN, "--fail")
    add("killed", *TRAIN, "--kill")
    add("shell", "sh", folder / "train.sh", sys.executable, env={"PYTHONPATH": folder})
    add("no torch", *PYTHON, "-c", "print('hello')")
    add("no module", *PYTHON, "-c", "import torch")
    add("no module, exits", *PYTHON, "-c", "import sys; sys.exit(3)")
    add("no command", "no-such-command", "x")
    add("late", *PYTHON, PROGRAMS / "imports_torch_late.py", folder / "inner")
    add("workers", *PYTHON, PROGRAMS / "data_workers.py")
    add("spawned", *PYTHON, PROGRAMS / "spawned.py", folder / "rendezvous")
    window = ("--steps", "1:3", "--ranks", "1", "--modules", r"blocks\.1")
    small = ("--steps", 4, "--d-model", 16, "--layers", 2, "--heads", 2)
    add("window", *TORCHRUN, TRAIN_GPT, *small, options=window)
    yield jobs
    jobs.close()


def _write_package(folder: Path) -> None:
    """A package that trains, a shell script that calls it, and somebody's sitecustomize."""
    (folder / "package").mkdir()
    shutil.copy(TINY, folder / "package" / "__main__.py")
    (folder / "train.sh").write_text('echo "in the shell"\n"$1" -m package\nexit 4\n')
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import sys\nif 'fpdiff' not in sys.orig_argv: print('somebody else starts')\n"
    )


def steps_of(root: Path, rank: int = 0) -> list[int]:
    steps: list[int] = Run.open(root).ranks[rank].steps()["step"].to_pylist()
    return steps


def own_words(result: Result) -> str:
    """Return stderr without the sentence that fpdiff says when a run has been recorded."""
    *lines, last = result.stderr.splitlines(keepends=True)
    assert re.fullmatch(r"fpdiff: recorded to (.*); next: fpdiff compare \1 OTHER_RUN\n", last)
    return "".join(lines)


# What the command says and how it ends


def test_output_and_exit_code_pass_through(jobs: Jobs, folder: Path) -> None:
    result, unrecorded = jobs["plain"], jobs["unrecorded"]
    assert result.returncode == 0
    assert result.stdout == f"somebody else starts\n{unrecorded.stdout}"
    assert own_words(result) == "to stderr\n"
    assert steps_of(folder / "plain") == [0, 1, 2]
    info = run_info(folder / "plain")
    assert info["exit_code"] == 0
    assert info["command"] == [*PYTHON, str(TINY), "--stderr", "to stderr\n"]
    assert rank_info(folder / "plain")["finished"]


def test_an_existing_sitecustomize_still_runs(jobs: Jobs) -> None:
    assert jobs["plain"].stdout.startswith("somebody else starts\n")


def test_an_exception_is_kept_with_the_record(jobs: Jobs, folder: Path) -> None:
    assert jobs["raises"].returncode == 1
    assert "ValueError: a bug of the script" in own_words(jobs["raises"])
    assert "fpdiff" not in own_words(jobs["raises"])
    assert steps_of(folder / "raises") == [0, 1, 2]
    assert rank_info(folder / "raises")["finished"]


def test_death_by_a_signal_is_128_more(jobs: Jobs, folder: Path) -> None:
    assert jobs["killed"].returncode == 128 + signal.SIGKILL
    assert run_info(folder / "killed")["exit_code"] == 137
    assert steps_of(folder / "killed") == [0, 1, 2]
    assert not rank_info(folder / "killed")["finished"]
    verdict = compare_json(folder / "raises", folder / "killed")
    assert verdict["verdict"] == "identical"
    assert any("was cut short" in note for note in verdict["notes"])


@pytest.mark.parametrize(
    ("number", "to_group", "code"), [(signal.SIGTERM, False, 7), (signal.SIGINT, True, 5)]
)
def test_signals(tmp_path: Path, number: signal.Signals, to_group: bool, code: int) -> None:
    """SIGTERM reaches fpdiff alone and is passed on; a terminal's Ctrl-C reaches all."""
    process = start(recording(tmp_path / "run", [*TRAIN, "--wait"]))
    assert process.stdout is not None
    for line in process.stdout:
        if line == "waiting\n":
            break
    if to_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    rest, stderr = process.communicate(timeout=60)
    assert rest == f"got {number.name}\n"
    assert process.returncode == code
    assert stderr.startswith("fpdiff: recorded to ") and len(stderr.splitlines()) == 1
    assert run_info(tmp_path / "run")["exit_code"] == code
    assert steps_of(tmp_path / "run") == [0, 1, 2]
    assert rank_info(tmp_path / "run")["finished"]


# What is recorded


def test_a_shell_script_that_runs_a_package_and_fails(jobs: Jobs, folder: Path) -> None:
    result = jobs["shell"]
    assert result.returncode == 4
    assert result.stdout == f"in the shell\n{jobs['unrecorded'].stdout}"
    assert own_words(result) == ""
    assert run_info(folder / "shell")["exit_code"] == 4
    assert steps_of(folder / "shell") == [0, 1, 2]


def test_a_script_that_records_itself_before_it_imports_torch(jobs: Jobs, folder: Path) -> None:
    assert jobs["late"].returncode == 0, jobs["late"].stderr
    assert "fpdiff: this process is being recorded already" in jobs["late"].stderr
    assert steps_of(folder / "late") == [0]
    assert not (folder / "inner").exists()


@pytest.mark.parametrize("job", ["no torch", "no module"])
def test_nothing_recorded(jobs: Jobs, folder: Path, job: str) -> None:
    result = jobs[job]
    assert result.returncode == 2
    assert result.stderr.startswith("fpdiff: nothing was recorded: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ("hello\n" if job == "no torch" else "")
    assert not (folder / job).exists()


def test_nothing_recorded_by_a_command_that_fails(jobs: Jobs, folder: Path) -> None:
    result = jobs["no module, exits"]
    assert result.returncode == 3
    assert not (folder / "no module, exits").exists()
    assert "recorded to" not in result.stderr


def test_a_command_that_does_not_exist(jobs: Jobs, folder: Path) -> None:
    assert_fails(jobs["no command"], "cannot run 'no-such-command': No such file or directory")
    assert not (folder / "no command").exists()


def test_data_workers_are_not_recorded(jobs: Jobs, folder: Path) -> None:
    result = jobs["workers"]
    assert result.returncode == 0
    assert own_words(result) == ""
    assert parameters(result.stdout)
    assert steps_of(folder / "workers") == list(range(8))
    record = Run.open(folder / "workers")
    assert list(record.ranks) == [0]
    sites = record.ranks[0].sites()
    called = sites.filter(pc.is_in(sites["kind"], pa.array(["input", "output", "generator"])))
    assert set(called["module"].to_pylist()) == {""}
    assert rank_info(folder / "workers")["blind_spots"] == {}


def test_ranks_that_multiprocessing_spawns(jobs: Jobs, folder: Path) -> None:
    result = jobs["spawned"]
    assert result.returncode == 0, result.stderr
    assert own_words(result) == ""
    assert len(parameters(result.stdout)) == 2
    for rank in (0, 1):
        assert steps_of(folder / "spawned", rank) == [0, 1, 2]
        assert rank_info(folder / "spawned", rank)["finished"]


def test_windows(jobs: Jobs, folder: Path) -> None:
    """Steps and ranks outside the window have no rows; of other modules no outputs are kept."""
    assert jobs["window"].returncode == 0, jobs["window"].stderr
    root = folder / "window"
    run = Run.open(root)
    assert list(run.ranks) == [1]
    assert not list(root.rglob("rank=00000*"))
    assert steps_of(root, 1) == [1, 2]
    sites = run.ranks[1].sites()
    modules = set(sites.filter(pc.equal(sites["kind"], "output"))["module"].to_pylist())
    assert {"blocks.1", "blocks.1.mlp.0", "blocks.1.attn"} <= modules
    assert all(module == "" or module.startswith("blocks.1") for module in modules)
    # The rung below is recorded whole.
    parameters = sites.filter(pc.equal(sites["kind"], "parameter"))
    assert "blocks.0.mlp.0" in parameters["module"].to_pylist()


# Where it is recorded


def test_what_exists_is_not_replaced(jobs: Jobs, folder: Path, tmp_path: Path) -> None:
    assert jobs["raises"].returncode == 1
    before = _content(folder / "raises")
    assert_fails(record(folder / "raises", TRAIN), "raises exists: give another --out, or --force")
    assert _content(folder / "raises") == before
    (tmp_path / "notes.txt").write_text("mine")
    for options in ((), ("--force",)):
        refused = record(tmp_path, TRAIN, *options)
        assert_fails(refused, "exists and is not a run: give another --out")
        refused = record(tmp_path / "notes.txt", TRAIN, *options)
        assert_fails(refused, "exists and is not a run: give another --out")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_force_replaces_a_run_and_nothing_else(jobs: Jobs, folder: Path) -> None:
    assert jobs["killed"].returncode == 137
    root = folder / "killed"
    (root / "notes.txt").write_text("mine")
    result = record(root, [*TRAIN, "--steps", 1], "--force")
    assert result.returncode == 0, result.stderr
    assert steps_of(root) == [0]
    assert (root / "notes.txt").read_text() == "mine"
    # The old run is gone before the command shows that it does not run.
    assert_fails(record(root, ["no-such-command"], "--force"), "cannot run")
    assert [path.name for path in root.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("place", ["file/run", "/proc/run"])
def test_a_place_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    result = record(tmp_path / place, [*PYTHON, "-c", "print('started')"])
    assert_fails(result, f"cannot write {tmp_path / place}: ", "give a writable --out")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--steps", "1-3", "--steps '1-3' is not understood: write it like 10:20,400"),
        ("--steps", "3:1", "--steps '3:1' is not understood"),
        ("--ranks", "0:3", "--ranks '0:3' is not understood: write it like 0,3-5"),
        ("--modules", "(", "--modules '(' is not a regular expression"),
        ("--level", "kernels", "level 'kernels' is not known: give step or layer"),
        ("--first-step", "-1", "see `fpdiff record --help`"),
        ("--nothing", "1", "see `fpdiff record --help`"),
    ],
)
def test_bad_options(tmp_path: Path, option: str, value: str, says: str) -> None:
    command = [*FPDIFF, "record", "--out", tmp_path / "run", option, value, "--", "echo", "started"]
    assert_fails(run(command), says)
    assert not (tmp_path / "run").exists()


def test_missing_arguments(tmp_path: Path) -> None:
    assert_fails(run([*FPDIFF, "record", "--out", tmp_path / "run"]), "no command to record", "--")
    assert_fails(run([*FPDIFF, "record", "--", "echo", "started"]), "say where to record to: --out")


# One fpdiff per rank

SLURM = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0}


def test_ranks_that_srun_starts_join_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = recording(out, TRAIN)
    processes = [start(command, env=SLURM | {"SLURM_PROCID": rank}) for rank in (0, 1)]
    for process in processes:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    for rank in (0, 1):
        assert steps_of(out, rank) == [0, 1, 2]
    # Another launch, or the same rank once more, does not.
    for variables in (SLURM | {"SLURM_STEP_ID": 1}, SLURM):
        again = run(command, env=variables | {"SLURM_PROCID": 0})
        assert_fails(again, "exists: give another --out")


def test_a_rank_that_records_nothing_does_not_disturb_the_others(tmp_path: Path) -> None:
    """RANK is all that the ranks have, beside their parent."""
    out = tmp_path / "run"
    commands: list[list[object]] = [[*PYTHON, "-c", "print('only watches')"], [*TRAIN]]
    ranks = [
        start(recording(out, command), env={"RANK": rank}) for rank, command in enumerate(commands)
    ]
    for process in ranks:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert list(Run.open(out).ranks) == [1]
    assert steps_of(out, 1) == [0, 1, 2]


def _content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
