"""The recorder changes no bit of what a program computes, and leaves nothing behind in it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAMS, PYTHON, Jobs, Preloaded, compare_json, rank_info, record_well, run

ZOO = PROGRAMS / "works_with" / "zoo.py"
CASES = re.findall(r"^def case_(\w+)", ZOO.read_text(), re.MULTILINE)
MODES: dict[str, dict[str, object]] = {
    "step": {"level": "step"},
    "layer": {"level": "layer"},
    "all": {"level": "layer", "stats": True, "rehash": True},
    "op, all": {"level": "op", "stats": True, "rehash": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    """Job X records to folder/X and returns what was printed; so does `unrecorded`.

    `layer` is started as a user does, the others as forks and from code.
    """
    jobs, preloaded = Jobs(), Preloaded()
    jobs.add("unrecorded", preloaded.run, ZOO, output=folder / "unrecorded.txt")
    for mode, options in MODES.items():
        if mode == "layer":
            jobs.add(mode, _recorded_by_the_command, folder / mode)
        else:
            record = {"path": str(folder / mode), **options}
            jobs.add(mode, preloaded.run, ZOO, output=folder / f"{mode}.txt", record=record)
    yield jobs
    jobs.close()
    preloaded.close()


def _recorded_by_the_command(path: Path) -> str:
    result = record_well(path, [*PYTHON, ZOO], "--level", "layer")
    assert result.stderr.startswith("fpdiff: recorded to ")
    assert len(result.stderr.splitlines()) == 1
    return result.stdout


def lines_of(output: str, case: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(f"{case}: ")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_same_bits(jobs: Jobs, case: str, mode: str) -> None:
    bare = lines_of(jobs["unrecorded"], case)
    assert bare and "failed" not in bare[0], bare
    assert lines_of(jobs[mode], case) == bare


@pytest.mark.parametrize("mode", MODES)
def test_everything_was_watched(jobs: Jobs, folder: Path, mode: str) -> None:
    """The recorder had no bug of its own, and nobody was warned of anything."""
    assert {line.partition(": ")[0] for line in jobs[mode].splitlines()} == {*CASES}
    info = rank_info(folder / mode)
    assert info["finished"] and "stopped" not in info


@pytest.mark.parametrize("pair", [("layer", "all"), ("layer", "op, all")])
def test_twins_of_different_care(jobs: Jobs, folder: Path, pair: tuple[str, str]) -> None:
    assert all(jobs[mode] for mode in pair)
    verdict = compare_json(*(folder / mode for mode in pair))
    assert verdict["verdict"] == "identical", verdict["summary"]


def test_nothing_stays_behind(tmp_path: Path) -> None:
    result = run([*PYTHON, PROGRAMS / "record_in_code.py", tmp_path])
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("as before\n" * 3, "")
