"""The commands sql and show as a user starts them."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Shape, write_run, write_run_json


def fpdiff(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fpdiff", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONWARNINGS": "error", "COLUMNS": "80"},
        check=False,
    )


def assert_fails(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One sentence on stderr, exit code 2, no traceback."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("fpdiff: ")
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "good", ranks=2)


def events_file(root: Path) -> Path:
    return root / "events" / "rank=00000" / "seg-00000.parquet"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes(byte ^ 255 for byte in data[40:200]) + data[200:])


def replace(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def renew(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"fpdiff.schema": "9"}), path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "is damaged"),
        (empty, "it is empty"),
        (flip, "is damaged"),
        (replace, "is not an fpdiff events file"),
        (renew, "newer fpdiff (format 9; this one reads up to 4): upgrade fpdiff"),
    ],
)
def test_bad_files(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    root = write_run(tmp_path / "run")
    damage(events_file(root))
    assert_fails(fpdiff("sql", root, "select count(*) from events"), str(events_file(root)), reason)
    if damage is not flip:  # show reads no pages of events.
        assert_fails(fpdiff("show", root), str(events_file(root)), reason)


def test_bad_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in ("sql", "show"):
        assert_fails(fpdiff(command, tmp_path / "missing"), "no run at ", "missing")
        assert_fails(fpdiff(command, tmp_path), "is not a run: it has no run.json", "--out")
        assert_fails(fpdiff(command, tmp_path / "file"), "is not a run: it has no run.json")
    write_run_json(tmp_path, schema=9)
    assert_fails(fpdiff("show", tmp_path), "run.json was written by a newer fpdiff (format 9;")


def test_bad_statements(run: Path, tmp_path: Path) -> None:
    assert_fails(fpdiff("sql", run, "selec 1"), "Parser Error: syntax error at or near")
    assert_fails(fpdiff("sql", run, "create table x as select 1"), "fpdiff sql only reads: ")
    target = tmp_path / "x.csv"
    assert_fails(fpdiff("sql", run, f"copy (select 1) to '{target}'"), "fpdiff sql only reads: ")
    assert not target.exists()
    assert_fails(fpdiff("sql", "select 1 from runs"), "no run given")
    assert_fails(fpdiff("sql", run, "--output", target), "--output needs a statement")


def test_usage_errors(run: Path) -> None:
    assert_fails(fpdiff("unknown"), "No such command 'unknown'; see `fpdiff --help`")
    assert_fails(fpdiff("sql"), "see `fpdiff sql --help`")
    assert_fails(fpdiff("show", run, "--nothing"), "--nothing", "see `fpdiff show --help`")
    nothing = fpdiff()
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "Usage: fpdiff" in nothing.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = fpdiff("--debug", "show", tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("Traceback")
    assert result.stderr.splitlines()[-1].startswith("fpdiff: ")


def test_version_and_help() -> None:
    assert fpdiff("--version").stdout.startswith("fpdiff ")
    help_text = fpdiff("--help")
    assert help_text.returncode == 0
    assert "sql" in help_text.stdout and "show" in help_text.stdout


def test_the_formats(run: Path, tmp_path: Path) -> None:
    statement = "select rank, value, 'nan'::double as n from metrics order by all limit 2"
    table = fpdiff("sql", run, statement)
    assert table.returncode == 0
    assert [line.split() for line in table.stdout.splitlines()[2:]] == [["0", "0.0", "nan"]] * 2
    comma = fpdiff("sql", run, statement, "--format", "csv")
    assert list(csv.reader(io.StringIO(comma.stdout)))[1] == ["0", "0.0", "nan"]
    objects = fpdiff("sql", run, statement, "--format", "json")
    assert json.loads(objects.stdout) == [{"rank": 0, "value": 0.0, "n": "NaN"}] * 2
    assert json.loads(fpdiff("sql", run, "from runs where 1 = 0", "--format", "json").stdout) == []
    target = tmp_path / "x.parquet"
    written = fpdiff("sql", run, statement, "--format", "parquet", "--output", target)
    assert written.stderr == f"Wrote {target}\n"
    assert pq.read_table(target)["rank"].to_pylist() == [0, 0]
    again = fpdiff("sql", run, statement, "--format", "parquet", "--output", target)
    assert_fails(again, "exists")
    nowhere = fpdiff("sql", run, statement, "--output", tmp_path / "no" / "x")
    assert_fails(nowhere, "cannot be written")


def test_long_tables_are_cut_with_a_note(run: Path) -> None:
    result = fpdiff("sql", run, "select * from range(200)")
    assert len(result.stdout.splitlines()) == 102
    assert "first 100 rows" in result.stderr


def test_labels(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "good")
    result = fpdiff("sql", run, other, "select run from runs order by 1", "--format", "json")
    names = {row["run"] for row in json.loads(result.stdout)}
    assert names == {f"{run.parent.name}/good", f"{tmp_path.name}/good"}
    twice = fpdiff("sql", run, run, "select run from runs order by 1", "--format", "json")
    assert json.loads(twice.stdout) == [{"run": "a"}, {"run": "b"}]


def test_the_shell_goes_on_after_an_error(run: Path) -> None:
    text = "selec 1;\n\n.help\n.tables\n.nonsense\nselect 'a;\nb' as x,\n 7;select 8;\nselect 9"
    result = fpdiff("sql", run, stdin=text)
    assert result.returncode == 2
    assert "syntax error" in result.stderr
    assert "there is no .nonsense: type .help" in result.stderr
    for part in (".quit", "metrics: run, rank", "7", "8", "9"):
        assert part in result.stdout
    quits = fpdiff("sql", run, stdin=".quit\nselect 1;")
    assert (quits.returncode, quits.stdout) == (0, "")


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    command = [sys.executable, "-m", "fpdiff", "sql", str(run), "select * from range(1000000)"]
    with subprocess.Popen(
        [*command, "--format", "csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_show(tmp_path: Path) -> None:
    info = {
        "environment": {"torch": "2.13.0", "threads": 4, "zzz": 1},
        "blind_spots": {"fake tensor": 12},
        "stopped": "disk full at step 1",
    }
    root = write_run(tmp_path, ranks=3, shape=Shape(info=info))
    (root / "ranks" / "rank=00002.json").write_text(
        json.dumps({"environment": {"torch": "2.12.1"}, "finished": True})
    )
    result = fpdiff("show", root)
    assert result.returncode == 0
    for part in (
        "python train.py",
        "0-2",
        "0-4, 5 recorded",
        "90",
        "bytes per event",
        "0-1: disk full at step 1",
        "2.13.0 on rank 0-1; 2.12.1 on rank 2",
        "fake tensor",
    ):
        assert part in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines()[1:])
    content = json.loads(fpdiff("show", root, "--json").stdout)
    assert [rank["state"] for rank in content["ranks"]] == ["stopped", "stopped", "finished"]
    assert content["blind_spots"] == {"fake tensor": 24}


def test_show_of_a_run_that_has_only_begun(tmp_path: Path) -> None:
    write_run_json(tmp_path, ended=None, exit_code=None)
    result = fpdiff("show", tmp_path)
    assert result.returncode == 0
    assert "none closed" in result.stdout and "not yet, or killed" in result.stdout


def test_neither_command_loads_torch(run: Path) -> None:
    code = (
        "import sys; from fpdiff.cli.main import run; "
        f"run(['show', {str(run)!r}]); run(['sql', {str(run)!r}, 'select 1 from runs']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )
