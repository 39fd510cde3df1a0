"""bench/suite.py --quick: everything is measured, drawn, and put into a page."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import machine
import pytest
import suite
import throughput
from conditions import DEBUG_MODES, NO_OP, NO_RECORDER, RUNGS
from processes import BENCH, PYTHON, Result, run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the bench reads /proc and drops files from the page cache"
)

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Result]]:
    folder = tmp_path_factory.mktemp("suite") / "figures"
    command = [*PYTHON, BENCH / "suite.py", "--quick", "--out", folder]
    result = run(command, timeout=280, env={"COLUMNS": "200"})
    assert result.returncode == 0, result.stderr
    yield folder, result


@pytest.fixture
def found(made: tuple[Path, Result]) -> dict[str, list[Any]]:
    return suite.read(made[0] / "suite.json")


def test_every_quick_part_is_measured(found: dict[str, list[Any]]) -> None:
    assert list(found) == [name for name, part in suite.PARTS.items() if part.quick is not None]
    assert all(found.values())


def test_conditions_take_turns_and_rungs_are_held_against_the_limit(
    found: dict[str, list[Any]],
) -> None:
    conditions = {each.condition: each for each in found["overhead 0.5M"]}
    wanted = (NO_RECORDER, *RUNGS, NO_OP, *DEBUG_MODES)
    assert tuple(conditions) == wanted
    for each in conditions.values():
        rounds = 1 if each.condition in DEBUG_MODES else 2
        if each.condition == NO_RECORDER:  # It stands beside each of the others.
            rounds = sum(len(other.seconds) for other in conditions.values() if other != each)
        assert len(each.seconds) == len(each.bare) == rounds and min(each.seconds) > 0
        assert bool(each.limit) == bool(each.events) == (each.condition in RUNGS)
    rungs = [conditions[name] for name in RUNGS]
    for name in ("once_bytes", "events"):
        values = [getattr(rung, name) for rung in rungs]
        assert values == sorted(set(values)), name
    for rung in rungs:
        assert len(rung.limit) == 2 and 0 < min(rung.limit)
        assert max(rung.limit) < max(rung.seconds)
        assert 10 < rung.disk_bytes / rung.events < 50
    assert 500 < conditions[NO_OP].ops < conditions["op"].events


def test_the_tables_are_printed_and_written(made: tuple[Path, Result]) -> None:
    folder, result = made
    written = (folder / "suite.md").read_text()
    for column in ("times limit", "us an op", "million events/s: median", "event files"):
        assert column in result.stdout and column in written
    assert "which is a trial" in written
    for fact in ("processor", "cores", "memory", "torch", "duckdb", "commit"):
        assert fact in written, fact
    assert machine.describe()["torch"] in written


def test_the_figure_is_drawn(made: tuple[Path, Result], tmp_path: Path) -> None:
    assert (made[0] / "suite.png").read_bytes().startswith(PNG)
    measured = suite.read(made[0] / "suite.json")["compare ranks"]
    assert [ranks for ranks, _ in fleet.points(measured, "ranks")] == [2, 4]
    assert [steps for steps, _ in fleet.points(measured, "steps")] == [4, 8]
    fleet.plot(measured, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(PNG)


def test_publishing_replaces_what_stands_between_the_markers(
    made: tuple[Path, Result], tmp_path: Path
) -> None:
    page = tmp_path / "overhead.md"
    shutil.copyfile(suite.PAGE, page)
    before = page.read_text()
    suite.publish(made[0], page)
    after = page.read_text()
    start, end = before.index(suite.BEGIN) + len(suite.BEGIN), before.index(suite.END)
    assert after.startswith(before[:start]) and after.endswith(before[end:])
    block = after[start : len(after) - len(before) + end]
    assert block.count("| condition |") == 1 and f"]({suite.FIGURE})" in block
    assert page.with_name(suite.FIGURE).read_bytes().startswith(PNG)
    suite.publish(made[0], page)
    assert page.read_text() == after


@pytest.mark.parametrize("text", ["", "{BEGIN}", "{END}{BEGIN}", "{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_one_pair_of_markers_is_left_alone(
    text: str, made: tuple[Path, Result], tmp_path: Path
) -> None:
    page = tmp_path / "overhead.md"
    text = text.format(BEGIN=suite.BEGIN, END=suite.END)
    page.write_text(text)
    with pytest.raises(ValueError, match="needs one pair of lines"):
        suite.publish(made[0], page)
    assert page.read_text() == text and list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("option", "folder", "said"),
    [
        ("--out", "", "suite.json exists: give another folder"),
        ("--publish", "", "figures is a trial"),
        ("--publish", "empty", "empty holds no suite that has ended"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    option: str,
    folder: str,
    said: str,
    made: tuple[Path, Result],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = [path.read_bytes() for path in (made[0] / "suite.json", suite.PAGE)]
    monkeypatch.setattr("sys.argv", ["suite.py", option, str(made[0] / folder)])
    with pytest.raises(SystemExit, match="2"):
        suite.main()
    assert said in capsys.readouterr().err
    assert written == [path.read_bytes() for path in (made[0] / "suite.json", suite.PAGE)]


def test_a_part_that_fails_ends_the_suite(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="--bogus .* has failed with exit code 2: see above"):
        suite.Part(throughput, "--bogus", None).measure(quick=False)
    assert "unrecognized arguments: --bogus" in capfd.readouterr().err
