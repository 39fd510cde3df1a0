import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from synthetic import Shape, digest, site, write_run

from fpdiff.store.columns import EventColumns
from fpdiff.store.errors import StoreError
from fpdiff.store.journal import read_journal
from fpdiff.store.run import Run
from fpdiff.store.schema import EVENTS


def journal_of(root: Path, segment: int) -> Path:
    return root / "journal" / "rank=00000" / f"seg-{segment:05d}.arrows"


def write_journal(path: Path, metadata: dict[str, str], schema: pa.Schema = EVENTS) -> None:
    columns = EventColumns(0, 0)
    columns.append(0, 0, digest(0), [], 0)
    with pa.ipc.new_stream(path, schema) as stream:
        stream.write_batch(
            columns.to_batch().replace_schema_metadata(schema.metadata), custom_metadata=metadata
        )


def test_every_cut_yields_the_whole_batches_before_it(tmp_path: Path) -> None:
    write_run(tmp_path, shape=Shape(steps=3, limits=Shape().limits.__class__(), close=False))
    path = journal_of(tmp_path, 0)
    data = path.read_bytes()
    counts = []
    for size in range(0, len(data) + 1, 7):
        path.write_bytes(data[:size])
        journal = read_journal(path)
        assert not journal.whole
        counts.append(len(journal.batches))
        assert journal.steps.num_rows == len(journal.batches)
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3} or set(counts) == {0, 1, 2}


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x10\x01"])
def test_a_torn_header_is_no_events_yet(tmp_path: Path, data: bytes) -> None:
    write_run(tmp_path, shape=Shape(steps=1, close=False))
    journal_of(tmp_path, 0).write_bytes(data)
    record = Run.open(tmp_path).ranks[0]
    assert record.num_events == record.sites().num_rows == record.steps().num_rows == 0
    assert record.open_journal


def test_a_cut_journal_before_another_segment_is_damage(tmp_path: Path) -> None:
    write_run(tmp_path, shape=Shape(steps=1, close=False))
    first = journal_of(tmp_path, 0)
    journal_of(tmp_path, 1).write_bytes(first.read_bytes())
    with pytest.raises(StoreError, match="seg-00000.arrows is damaged: it is cut off"):
        Run.open(tmp_path).ranks[0].sites()


def test_a_finished_journal_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "seg-00000.arrows"
    write_journal(path, {"sites": json.dumps([site(0)]), "step": "null"})
    journal = read_journal(path)
    assert journal.whole
    assert journal.table("events").num_rows == journal.table("sites").num_rows == 1
    assert journal.table("steps").num_rows == 0


@pytest.mark.parametrize(
    "metadata",
    [
        {"sites": "nonsense"},
        {"sites": "{}"},
        {"sites": "[1]"},
        {"sites": '[{"site": "a"}]'},
        {"sites": '[{"site": 0}]'},
        {"step": "[1]"},
        {"step": '{"a": 1}'},
        {"step": '{"step": 1}'},
        {"step": '{"step": 1, "content": "zz"}'},
        {"step": '{"step": 1, "content": 5}'},
        {"step": '{"step": [1], "content": "00"}'},
    ],
)
def test_bad_metadata(tmp_path: Path, metadata: dict[str, str]) -> None:
    path = tmp_path / "seg-00000.arrows"
    write_journal(path, metadata)
    with pytest.raises(StoreError, match="seg-00000.arrows is damaged"):
        read_journal(path)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [({"fpdiff.schema": "99"}, "newer fpdiff"), ({}, "not an fpdiff journal")],
)
def test_foreign_journals(tmp_path: Path, metadata: Any, reason: str) -> None:
    path = tmp_path / "seg-00000.arrows"
    write_journal(path, {}, EVENTS.with_metadata(metadata))
    with pytest.raises(StoreError, match=f"seg-00000.arrows .*{reason}"):
        read_journal(path)


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="seg-00000.arrows is missing.*if it is being recorded"):
        read_journal(tmp_path / "seg-00000.arrows")
