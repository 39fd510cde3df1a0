"""What is said of names and options that nothing good can come of: a sentence, and code 2."""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import FPDIFF, environment, run
from synthetic import write_run

from fpdiff.cli import main
from fpdiff.store.bucket import ObjectFolder
from fpdiff.store.errors import BucketError, StoreError
from fpdiff.store.run import Run

TOO_LONG = "x" * 300
READERS = [["show"], ["certify"], ["compact"], ["sql"], ["compare", "run"]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one sentence that a command line is refused with."""
    code = main.run(list(words))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("fpdiff: ") and err.count("\n") == 1, err
    assert "internal error" not in err
    return err


@pytest.mark.parametrize("command", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gone", ["no run at gone: give what `fpdiff record --out` was given"]),
        (TOO_LONG, [f"{TOO_LONG} cannot be read: File name too long"]),
        ("", ["no run at '': "]),
        ("gs://bucket/run", ["gs://bucket/run", "s3://BUCKET/FOLDER"]),
        ("S3://bucket/run", ["S3://bucket/run", "s3://BUCKET/FOLDER"]),
    ],
    ids=["missing", "too long", "empty", "another scheme", "capitals"],
)
def test_names_of_no_run(
    capsys: pytest.CaptureFixture[str], command: list[str], name: str, parts: list[str]
) -> None:
    said = refusal(capsys, *command, name)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("name", ["gs://bucket/run", "S3://bucket/run", "", TOO_LONG])
def test_nothing_is_recorded_to_such_names(
    capsys: pytest.CaptureFixture[str], here: Path, name: str
) -> None:
    refusal(capsys, "record", "--out", name, "--force", "--", "touch", "ran")
    assert [path.name for path in here.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "name", ["s3://b/../x", "s3://../x", "s3://b/./x", "s3://b/x/..", "s3://b/x//y"]
)
def test_addresses_that_storages_read_differently(name: str) -> None:
    with pytest.raises(BucketError, match="write s3://BUCKET/FOLDER"):
        ObjectFolder(name)


@pytest.mark.parametrize("command", [["demo"], ["verify"]], ids=lambda words: words[0])
@pytest.mark.parametrize("keep", ["run/run.json/x", "file", TOO_LONG])
def test_a_folder_to_keep_that_cannot_be_made(
    capsys: pytest.CaptureFixture[str], here: Path, command: list[str], keep: str
) -> None:
    (here / "file").write_text("kept")
    words = ["--", "touch", "ran"] if command == ["verify"] else []
    assert keep in refusal(capsys, *command, "--keep", keep, *words)
    assert (here / "file").read_text() == "kept" and not (here / "ran").exists()


def test_more_ranks_than_any_run_has(capsys: pytest.CaptureFixture[str]) -> None:
    """They used to be counted one by one, until there was no memory left."""
    said = refusal(capsys, "compare", "run", "run", "--ranks", "0-99999999999")
    assert "--ranks '0-99999999999'" in said


def test_a_ray_cluster_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Ray itself tries for minutes."""
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        command = ["compare", "run", "run", "--engine", "ray", "--address", address]
        assert f"the Ray cluster at {address} cannot be reached" in refusal(capsys, *command)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_columns_of_one_name(capsys: pytest.CaptureFixture[str], here: Path, form: str) -> None:
    """In JSON only the last of them would be left."""
    query = "select 1 as a, 2 as a"
    said = refusal(capsys, "sql", "run", query, "--format", form, "--output", "result")
    assert "two columns are called a" in said and not (here / "result").exists()
    assert main.run(["sql", "run", "select 1 as a, 2 as b", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "b": 2}]


def test_the_next_command_can_be_typed(capfd: pytest.CaptureFixture[str], here: Path) -> None:
    """A name with a blank is quoted as a shell reads it."""
    name = "my runs/é;b"
    assert main.run(["record", "--out", name, "--", *_training(here)]) == 0
    told = capfd.readouterr().err.strip().splitlines()[-1].partition("next: ")[2]
    assert shlex.split(told) == ["fpdiff", "compare", name, "OTHER_RUN"]


def _training(here: Path) -> list[str]:
    script = here / "train.py"
    script.write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n")
    return ["python", os.fspath(script)]


def test_a_folder_that_may_not_be_entered(here: Path) -> None:
    (here / "shut").mkdir(mode=0)
    Run.open("run")  # Which imports what nobody else may read.
    with _nobody(), pytest.raises(StoreError, match="^shut cannot be read: Permission denied"):
        Run.open("shut")


@contextmanager
def _nobody() -> Iterator[None]:
    """Be no superuser, who may enter every folder."""
    user = os.geteuid()
    if user == 0:
        # The folders above a test's own are closed to others; where this process is stays open.
        Path().chmod(0o777)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("show run >/dev/full", "fpdiff: No space left on device: make room"),
        ("show run >&-", ""),
        ("compare gone run 2>&-", ""),
        ("sql run <&-", ""),
        ("show $(printf 'odd\\377')", "fpdiff: no run at odd\\udcff"),
    ],
)
def test_odd_streams(line: str, said: str) -> None:
    """An error about a stream ends with 2: Python's own 1 would read as diverged."""
    script = f"{shlex.quote(sys.executable)} -m fpdiff {line}"
    result = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=environment(), check=False
    )
    is_done = line in ("show run >&-", "sql run <&-")
    assert result.returncode == (0 if is_done else 2), result.stderr
    assert result.stderr.startswith(said) and result.stderr.count("\n") == bool(said)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("compare gone run 2>/dev/full", 2),
        ("sql run 'select * from range(101)' 2>/dev/full", 0),
        ("record --out a -- sh -c 'mkdir a/journal; exit 3' 2>/dev/full", 3),
        ("record --out a -- sh -c 'mv a b; exit 3' 2>/dev/full", 3),
        ("record --out a -- sh -c 'mkdir a/journal; exit 3' 2> >(true)", 3),
    ],
)
def test_what_stderr_does_not_take_decides_nothing(line: str, code: int) -> None:
    """Neither a full disk nor a reader that went away changes how a command ends."""
    script = f"{shlex.quote(sys.executable)} -m fpdiff {line} >/dev/null"
    result = subprocess.run(["bash", "-c", script], env=environment(), check=False)
    assert result.returncode == code


def test_a_stream_that_cannot_spell_a_name(here: Path) -> None:
    write_run(here / "ä")
    result = run([*FPDIFF, "show", "ä"], env={"PYTHONIOENCODING": "ascii"}, cwd=here)
    assert result.returncode == 0 and result.stdout.startswith("run \\xe4\n"), result.stderr


@pytest.fixture
def nowhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder that has been removed."""
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    return here


def test_a_name_that_begins_nowhere_is_refused(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "record", "--out", "a", "--", "true")
    assert "the working directory has been removed" in said


def test_from_nowhere_a_command_is_run_and_runs_are_read(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["record", "--out", str(nowhere / "a"), "--", "sh", "-c", "exit 3"]) == 3
    assert main.run(["show", str(nowhere / "run")]) == 0


def test_a_run_that_is_removed_while_the_command_runs_does_not_change_its_end(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["record", "--out", "a", "--", "sh", "-c", "mv a b; exit 3"]) == 3
    said = capsys.readouterr().err
    assert said == f"fpdiff: {here / 'a'} is gone: it was moved or removed while the command ran\n"


def test_a_path_that_is_no_text_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "record", "--out", "caf\udce9", "--", "true")
    assert r"caf\udce9' is no UTF-8" in said and not list(here.glob("caf*"))
