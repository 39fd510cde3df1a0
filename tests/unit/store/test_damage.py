import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import (
    Shape,
    file_of,
    flush,
    kill,
    read_all,
    site,
    step_row,
    write_rank,
    write_run,
    write_run_json,
)

from fpdiff.store.checks import naming
from fpdiff.store.errors import StoreError
from fpdiff.store.run import Run
from fpdiff.store.summary import summarize
from fpdiff.store.writer import RankWriter


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run at .*missing: give what"):
        Run.open(tmp_path / "missing")
    with pytest.raises(StoreError, match="is not a run: it has no run.json; give the folder"):
        Run.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file is not a run"):
        Run.open(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is damaged"),
        ("[]", "does not hold a JSON object"),
        ("[" * 100_000, "run.json is damaged"),
        ('{"schema": "1"}', "which version"),
        ("{}", "which version"),
        ('{"schema": true}', "which version"),
        ("\xff", "run.json is damaged"),
        ('{"a": "' + " " * (16 << 20) + '"}', "larger than 16 MiB"),
        (
            '{"schema": 7}',
            r"run.json was written by a newer fpdiff \(format 7; .* up to 4\): upgrade fpdiff",
        ),
    ],
    ids=range(9),
)
def test_bad_run_json(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=reason):
        Run.open(tmp_path)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match="run.json cannot be read: Permission denied"):
        Run.open(tmp_path)


@pytest.mark.parametrize("table", ["sites", "steps", "events"])
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_missing_file_is_named(tmp_path: Path, table: str, segment: int) -> None:
    write_run(tmp_path)
    file_of(tmp_path, table, segment).unlink()
    with pytest.raises(StoreError, match=f"{table}/rank=00000/seg-0000{segment}.parquet is miss"):
        read_all(tmp_path)


@pytest.mark.parametrize("num_files", [1, 2])
def test_a_segment_that_was_not_copied_whole(tmp_path: Path, num_files: int) -> None:
    """Without its events it does not count, unless the rank says that it has finished."""
    unfinished = Shape(info={"finished": False})
    write_run(tmp_path, shape=unfinished)
    whole = read_all(tmp_path)
    for table in ("events", "steps")[:num_files]:
        file_of(tmp_path, table, 2).unlink()
    record = Run.open(tmp_path).ranks[0]
    assert read_all(tmp_path) == [row for row in whole if row["step"] < 4]
    assert record.steps()["step"].to_pylist() == [0, 1, 2, 3]
    file_of(tmp_path, "events", 1).unlink()
    assert {row["step"] for row in read_all(tmp_path)} == {0, 1}
    file_of(tmp_path, "events", 0).unlink()
    assert read_all(tmp_path) == []


def test_a_journal_that_is_cut_off_before_another_is_damaged(tmp_path: Path) -> None:
    write_run(tmp_path, shape=Shape(close=False))
    journals = tmp_path / "journal" / "rank=00000"
    whole = (journals / "seg-00002.arrows").read_bytes()
    (journals / "seg-00003.arrows").write_bytes(whole)
    with pytest.raises(StoreError, match=r"seg-00002.arrows is damaged: it is cut off, yet later"):
        read_all(tmp_path)


def test_a_file_that_vanishes_while_it_is_read_is_named(tmp_path: Path) -> None:
    write_run(tmp_path)
    record = Run.open(tmp_path).ranks[0]
    assert len(record.segments) == 3
    file_of(tmp_path, "events").unlink()
    with pytest.raises(StoreError, match="seg-00000.parquet is missing: copy the whole run"):
        record.events(0)
    with pytest.raises(StoreError, match="seg-00000.parquet is missing"):
        _ = record.size_bytes


@pytest.mark.parametrize("table", ["sites", "steps", "events"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "is damaged: it is empty"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: data[:-1], "is damaged"),
        (
            lambda data: data[:40] + bytes(byte ^ 255 for byte in data[40:200]) + data[200:],
            "is damaged",
        ),
        (lambda data: b"PAR1" * 10, "is damaged"),
    ],
    ids=["empty", "half", "cut", "flipped", "nonsense"],
)
def test_damaged_parquet(tmp_path: Path, table: str, damage: Any, reason: str) -> None:
    write_run(tmp_path)
    path = file_of(tmp_path, table)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=f"{table}/rank=00000/seg-00000.parquet {reason}"):
        read_all(tmp_path)


def rewrite(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)


def test_foreign_parquet(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = file_of(tmp_path, "events")
    rewrite(path, pa.table({"a": [1]}))
    with pytest.raises(StoreError, match="is not an fpdiff events file"):
        read_all(tmp_path)
    rewrite(path, pa.table({"a": [1]}).replace_schema_metadata({"fpdiff.schema": "1"}))
    with pytest.raises(StoreError, match="is not an fpdiff events file"):
        read_all(tmp_path)
    path.write_bytes(file_of(tmp_path, "steps").read_bytes())
    with pytest.raises(StoreError, match="is not an fpdiff events file"):
        read_all(tmp_path)


@pytest.mark.parametrize(("version", "reason"), [("9", "newer fpdiff"), ("x", "which version")])
def test_version_of_parquet(tmp_path: Path, version: str, reason: str) -> None:
    write_run(tmp_path)
    path = file_of(tmp_path, "sites")
    rewrite(path, pq.read_table(path).replace_schema_metadata({"fpdiff.schema": version}))
    with pytest.raises(StoreError, match=f"seg-00000.parquet .*{reason}"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"site": 5}, "refers to a site that is not recorded"),
        ({"offsets": [0]}, "reads an event that is not before it"),
        ({"offsets": [-1]}, "reads an event that is not before it"),
        ({"span": -1}, "negative span"),
        ({"row": step_row(0, 0, 2)}, "step 0 should have 2 events"),
    ],
)
@pytest.mark.parametrize("close", [True, False])
def test_impossible_events(
    tmp_path: Path, changes: dict[str, Any], reason: str, close: bool
) -> None:
    write_run_json(tmp_path)
    writer = RankWriter(tmp_path, 0)
    writer.add_site(site(0))
    flush(writer, 0, 0, **changes)
    if close:
        writer.close()
    else:
        kill(writer)
    with pytest.raises(StoreError, match=f"rank=00000.*{reason}"):
        Run.open(tmp_path).ranks[0].events(0)
    with pytest.raises(StoreError, match=f"rank=00000.*{reason}"):
        read_all(tmp_path)


def test_events_out_of_order(tmp_path: Path) -> None:
    write_run_json(tmp_path)
    writer = RankWriter(tmp_path, 0)
    writer.add_site(site(0))
    flush(writer, 0, 1)
    flush(writer, 0, 1)
    kill(writer)
    with pytest.raises(StoreError, match="seg-00000.arrows is damaged: its events are out of"):
        read_all(tmp_path)


def test_a_site_number_twice(tmp_path: Path) -> None:
    write_run_json(tmp_path)
    writer = RankWriter(tmp_path, 0)
    writer.add_site(site(0))
    writer.add_site(site(0))
    flush(writer, 0, 0)
    kill(writer)
    with pytest.raises(StoreError, match="sites/rank=00000 is damaged: a site number appears"):
        Run.open(tmp_path).ranks[0].sites()


def test_damaged_rank_json(tmp_path: Path) -> None:
    write_rank(tmp_path)
    write_run_json(tmp_path)
    (tmp_path / "ranks" / "rank=00000.json").write_text(json.dumps([1]))
    with pytest.raises(StoreError, match="rank=00000.json is damaged"):
        _ = Run.open(tmp_path).ranks[0].info


@pytest.mark.parametrize(
    "error", [MemoryError(), pa.ArrowMemoryError("malloc"), OSError("ZSTD_DCtx create failed")]
)
def test_a_lack_of_memory_is_not_told_as_damage(tmp_path: Path, error: Exception) -> None:
    with (
        pytest.raises(StoreError, match="run.json takes more memory than there is: free some"),
        naming(tmp_path / "run.json"),
    ):
        raise error


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "ranks/rank=00000.json",
        *(f"{table}/rank=00000/seg-00000.parquet" for table in ("sites", "events", "steps")),
    ],
)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    root = write_run(tmp_path / "run", shape=Shape(close=False))
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(StoreError, match=name):
        Run.open(root).ranks[0].announce_steps()
        summarize(Run.open(root))
        read_all(root)


@pytest.mark.timeout(20)
def test_a_journal_that_is_no_file_is_empty(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", shape=Shape(close=False))
    journal = root / "journal" / "rank=00000" / "seg-00002.arrows"
    journal.unlink()
    os.mkfifo(journal)
    assert summarize(Run.open(root)).last_step == 3
