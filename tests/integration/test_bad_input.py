"""What compare says of things that are no runs, and of runs that have only a part in common."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import TINY, Preloaded, assert_fails, compare, compare_json

import fpdiff

STEPS = 5

# How each run is recorded, beside its path, and which rank it is.
RUNS: dict[str, tuple[dict[str, object], int]] = {
    "whole": ({}, 0),
    "early": ({"steps": "0:2"}, 0),
    "late": ({"steps": "3:5"}, 0),
    "rung step": ({"level": "step"}, 0),
    "block": ({"modules": "block"}, 0),
    "out": ({"modules": "out"}, 0),
    "rank 1": ({}, 1),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the RUNS, with `both`, which has two ranks, and with `open`."""
    folder, preloaded = tmp_path_factory.mktemp("runs"), Preloaded()
    output = folder / "output.txt"
    for name, (options, rank) in RUNS.items():
        preloaded.run(
            TINY,
            *("--steps", STEPS),
            env={"RANK": rank} if rank else {},
            record={"path": str(folder / name), **options},
            output=output,
        )
    for rank in (0, 1):
        preloaded.run(
            TINY,
            *("--steps", STEPS),
            env={"RANK": rank},
            record={"path": str(folder / "both")},
            output=output,
        )
    killed = preloaded.start(
        TINY, "--steps", 3, "--kill", record={"path": str(folder / "open")}, output=output
    )
    preloaded.wait(killed)
    preloaded.close()
    yield folder


# Not a run, or a damaged one


def test_not_a_run(runs: Path, tmp_path: Path) -> None:
    whole = runs / "whole"
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    for a, b in ((whole, tmp_path / "missing"), (tmp_path / "missing", whole)):
        assert_fails(compare(a, b), "no run at ", "missing")
    assert_fails(compare(whole, tmp_path / "file"), "file is not a run: it has no run.json")
    assert_fails(compare(tmp_path / "other", whole, "--json"), "other is not a run", "--out")


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


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("table", ["sites", "events", "steps"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "is damaged"),
        (empty, "it is empty"),
        (flip, "is damaged"),
        (replace, "is not an fpdiff "),
        (renew, "newer fpdiff"),
        (remove, "is missing"),
    ],
)
def test_damaged_tables(
    runs: Path, tmp_path: Path, table: str, damage: Callable[[Path], None], reason: str
) -> None:
    """Damage is an error in either position; it never reads as a divergence."""
    root = tmp_path / "run"
    shutil.copytree(runs / "whole", root)
    file = root / table / "rank=00000" / "seg-00000.parquet"
    damage(file)
    # Rung step differs in its structure, so that steps and sites and events are all read.
    with pytest.raises(fpdiff.StoreError, match=f"{re.escape(str(file))}.*{reason}"):
        fpdiff.compare(runs / "rung step", root)
    if table == "events":
        assert_fails(compare(root, runs / "rung step"), str(file), reason)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("run.json", "{", "run.json"),
        ("run.json", "[]", "run.json"),
        ("run.json", '{"schema": 9}', "newer fpdiff (format 9"),
        ("run.json", '{"schema": 1}', "record one of them again"),
        ("ranks/rank=00000.json", "{", "rank=00000.json"),
        ("ranks/rank=00000.json", "[]", "rank=00000.json"),
    ],
)
def test_damaged_descriptions(
    runs: Path, tmp_path: Path, file: str, content: str, reason: str
) -> None:
    root = tmp_path / "run"
    shutil.copytree(runs / "whole", root)
    (root / file).write_text(content)
    with pytest.raises(fpdiff.FpdiffError, match=re.escape(reason)):
        fpdiff.compare(runs / "whole", root)


def test_a_rung_that_is_not_known(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(runs / "whole", root)
    info = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps(info | {"level": "quark"}))
    assert_fails(compare(runs / "whole", root), "quark")


# Too little in common


@pytest.mark.parametrize(
    ("a", "b", "options", "reason"),
    [
        ("early", "late", (), "step in common"),
        ("whole", "rank 1", (), "have no rank in common"),
        ("whole", "whole", ("--steps", "90:95"), "step in common"),
        ("both", "both", ("--ranks", "0,7"), "rank 7 is not in both runs"),
    ],
)
def test_nothing_in_common(
    runs: Path, a: str, b: str, options: tuple[str, ...], reason: str
) -> None:
    if options:
        assert_fails(compare(runs / a, runs / b, *options), reason)
    verdict = compare_json(runs / a, runs / b, *options)
    assert verdict["verdict"] == "incomparable"
    assert reason in verdict["summary"]
    assert (verdict["schema"], verdict["origins"], verdict["compared"]) == (1, [], None)


@pytest.mark.parametrize("option", ["--steps", "--ranks"])
def test_bad_options(runs: Path, option: str) -> None:
    assert_fails(compare(runs / "whole", runs / "whole", option, "x"), "is not understood")


# Something in common


@pytest.mark.parametrize(
    ("a", "b", "steps", "note"),
    [
        ("whole", "early", [0, 1], "A has steps 0-4, B has steps 0-1: compared over steps 0-1"),
        ("late", "whole", [3, 4], "A has steps 3-4, B has steps 0-4: compared over steps 3-4"),
        ("both", "whole", [0, 4], "B has no rank 1: the others are compared"),
        ("rank 1", "both", [0, 4], "A has no rank 0: the others are compared"),
        ("whole", "open", [0, 2], "B's record of rank 0 has not finished"),
        ("whole", "rung step", [0, 4], "A was recorded at rung layer, B at step"),
        ("whole", "block", [0, 4], "compared over what both have"),
        ("out", "block", [0, 4], "compared over what both have"),
        ("block", "rung step", [0, 4], "compared at step"),
    ],
)
def test_a_part_in_common(runs: Path, a: str, b: str, steps: list[int], note: str) -> None:
    """What both have is compared, that is said, and it is no difference."""
    verdict = fpdiff.compare(runs / a, runs / b).to_dict()
    assert verdict["verdict"] == "identical", verdict["summary"]
    assert verdict["compared"]["steps"] == steps
    assert any(note in found for found in verdict["notes"]), verdict["notes"]
