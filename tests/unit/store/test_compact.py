"""The consolidated tables: a copy that is preferred while it is current, and never trusted."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from synthetic import Shape, make_old, write_rank, write_run
from synthetic_runs import rewrite_json

from fpdiff.fingerprint.record.job.runfolder import remove
from fpdiff.store import compacting
from fpdiff.store.compact import COMPACTED
from fpdiff.store.compacting import Compacted, compact_run
from fpdiff.store.errors import StoreError
from fpdiff.store.run import Run
from fpdiff.store.schema import VERSION
from fpdiff.store.summary import summarize


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=3)


def read(run: Run) -> list[Any]:
    """Read everything that a consolidated table may stand for, and what rests on it."""
    return [
        [
            record.sites().to_pylist(),
            record.steps().to_pylist(),
            record.steps(["content", "ended"]).to_pylist(),
            *(record.events(step).to_pylist() for step in range(6)),
        ]
        for record in run.ranks.values()
    ]


def own(root: Path) -> list[Any]:
    return read(Run.open(root, compact=False))


def hide_own_files(root: Path) -> None:
    """Overwrite the ranks' own tables with nonsense of the same size."""
    for name in COMPACTED:
        for path in (root / name).rglob("*.parquet"):
            path.write_bytes(b"x" * path.stat().st_size)


def test_the_same_is_read_from_few_files(root: Path) -> None:
    before = own(root)
    done = compact_run(root)
    assert done == Compacted(
        ranks=[0, 1, 2], left_out=[], files=18, size_bytes=done.size_bytes, is_new=True
    )
    hide_own_files(root)
    run = Run.open(root)
    assert all(record.is_compact for record in run.ranks.values())
    assert read(run) == before
    assert read(run.shifted(1))[0][1][0]["step"] == 1


def test_row_groups_end_with_ranks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = own(root)
    monkeypatch.setattr(compacting, "ROW_GROUP_ROWS", 6)
    compact_run(root)
    assert pq.ParquetFile(root / "compact" / "steps.parquet").num_row_groups == 2
    assert read(Run.open(root)) == before


def test_compacting_again_does_nothing(root: Path) -> None:
    compact_run(root)
    files = {path: path.stat().st_mtime_ns for path in (root / "compact").iterdir()}
    assert not compact_run(root).is_new
    assert files == {path: path.stat().st_mtime_ns for path in (root / "compact").iterdir()}


def test_a_rank_whose_files_are_others_is_read_itself(root: Path) -> None:
    compact_run(root)
    shutil.rmtree(root / "journal" / "rank=00001")
    for name in ("sites", "events", "steps"):
        shutil.rmtree(root / name / "rank=00001")
    write_rank(root, 1, Shape(steps=4))
    run = Run.open(root)
    assert [record.is_compact for record in run.ranks.values()] == [True, False, True]
    assert read(run) == own(root)
    assert summarize(run).compact == [0, 2]
    assert compact_run(root).is_new
    assert summarize(Run.open(root)).compact == [0, 1, 2]


def test_ranks_that_have_not_ended_are_left_out(tmp_path: Path) -> None:
    root = write_run(tmp_path, ranks=2)
    write_rank(root, 2, Shape(close=False))
    done = compact_run(root)
    assert (done.ranks, done.left_out) == ([0, 1], [2])
    assert read(Run.open(root)) == own(root)


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({"ended": None}, 1, "has not ended: compact it when its command has"),
        ({}, 0, "holds no rank whose recording has ended"),
    ],
)
def test_what_cannot_be_compacted(
    tmp_path: Path, changes: dict[str, Any], ranks: int, reason: str
) -> None:
    root = write_run(tmp_path / "run", ranks=ranks, **changes)
    with pytest.raises(StoreError, match=reason):
        compact_run(root)
    assert not (root / "compact").exists()


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run at"):
        compact_run(tmp_path / "missing")


def test_a_rank_without_steps(tmp_path: Path) -> None:
    root = write_run(tmp_path, ranks=2)
    write_rank(root, 2, Shape(steps=0))
    compact_run(root)
    run = Run.open(root)
    assert run.ranks[2].is_compact and run.ranks[2].steps().num_rows == 0
    assert read(run) == own(root)


def test_damage_in_a_ranks_own_file_is_named(root: Path) -> None:
    path = root / "steps" / "rank=00001" / "seg-00001.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(StoreError, match="seg-00001.parquet is damaged"):
        compact_run(root)
    assert not (root / "compact" / "index.json").exists()
    assert list((root / "compact").iterdir()) == []


@pytest.mark.parametrize("table", COMPACTED)
def test_no_flipped_bit_is_read(tmp_path: Path, table: str) -> None:
    root = write_run(tmp_path, shape=Shape(steps=2, events=3))
    before = own(root)
    compact_run(root)
    path = root / "compact" / f"{table}.parquet"
    content = path.read_bytes()
    found = 0
    for place in range(0, len(content), len(content) // 150 | 1):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert read(Run.open(root)) == before
        except StoreError as error:
            assert str(path) in str(error)
            found += 1
    assert found
    path.write_bytes(content)
    assert read(Run.open(root)) == before


@pytest.mark.parametrize("table", COMPACTED)
def test_a_missing_table_is_named(root: Path, table: str) -> None:
    compact_run(root)
    (root / "compact" / f"{table}.parquet").unlink()
    with pytest.raises(StoreError, match=f"{table}.parquet is missing"):
        read(Run.open(root))
    assert compact_run(root).is_new
    assert read(Run.open(root)) == own(root)


def index_with(root: Path, **changes: Any) -> None:
    rewrite_json(root / "compact" / "index.json", **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": VERSION + 1}, "written by a newer fpdiff"),
        ({"schema": None}, "which version"),
        ({"steps": []}, "index.json is damaged: it does not list the ranks; run `fpdiff compact`"),
        ({"steps": {"0": [0, 5]}}, "does not list the ranks"),
        ({"steps": {"x": [0, 5, 3, 9]}}, "does not list the ranks"),
    ],
)
def test_a_wrong_index_is_refused_and_compacting_mends_it(
    root: Path, changes: dict[str, Any], reason: str
) -> None:
    compact_run(root)
    index_with(root, **changes)
    with pytest.raises(StoreError, match=reason):
        Run.open(root)
    assert compact_run(root).is_new
    assert read(Run.open(root)) == own(root)


@pytest.mark.parametrize("entry", [[7, 5], [0, 4], [0, 6], [-1, 5]])
def test_an_index_that_does_not_fit_its_table_is_refused(root: Path, entry: list[int]) -> None:
    compact_run(root)
    parts = json.loads((root / "compact" / "index.json").read_text())["steps"]
    parts["1"] = entry + parts["1"][2:]
    index_with(root, steps=parts)
    with pytest.raises(StoreError, match="steps.parquet is damaged: .*; run `fpdiff compact`"):
        read(Run.open(root))


def test_a_foreign_table_is_refused(root: Path) -> None:
    compact_run(root)
    shutil.copy(root / "compact" / "sites.parquet", root / "compact" / "steps.parquet")
    with pytest.raises(StoreError, match="steps.parquet is damaged: its columns are others"):
        read(Run.open(root))


@pytest.mark.parametrize("fails_at", range(1, 4))
def test_interrupted_at_any_rename_the_run_reads_as_before(
    root: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    before = own(root)
    compact_run(root)
    shutil.rmtree(root / "journal" / "rank=00002")
    for name in ("sites", "events", "steps"):
        shutil.rmtree(root / name / "rank=00002")
    write_rank(root, 2, Shape(steps=4))
    before = own(root)
    calls = 0
    original = os.replace

    def interrupt(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise KeyboardInterrupt
        original(source, target)

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compact_run(root)
    monkeypatch.undo()
    assert summarize(Run.open(root)).compact == []
    assert read(Run.open(root)) == before
    assert compact_run(root).is_new
    assert read(Run.open(root)) == before


def test_a_folder_that_cannot_be_written_is_named(root: Path) -> None:
    (root / "compact").write_text("")
    with pytest.raises(StoreError, match="compact cannot be written"):
        compact_run(root)


def test_progress_is_told(root: Path) -> None:
    told: list[tuple[int, int]] = []
    compact_run(root, progress=lambda done, total: told.append((done, total)))
    assert told == [(n + 1, 6) for n in range(6)]


def test_replacing_a_run_removes_it_whole(root: Path) -> None:
    compact_run(root)
    remove(root)
    assert not root.exists()


def test_older_files_are_compacted_as_they_are_read(tmp_path: Path) -> None:
    root = write_run(tmp_path, ranks=2)
    make_old(root, 1)
    before = own(root)
    compact_run(root)
    assert read(Run.open(root)) == before
