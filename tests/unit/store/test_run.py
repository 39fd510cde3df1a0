from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Shape, file_of, flush, read_all, site, step_row, write_run, write_run_json

from fpdiff.store.run import Run
from fpdiff.store.schema import EVENTS, SITES, STEPS
from fpdiff.store.writer import RankWriter, SegmentLimits


def test_a_closed_rank_and_a_killed_one_hold_the_same_rows(tmp_path: Path) -> None:
    closed = write_run(tmp_path / "closed")
    killed = write_run(tmp_path / "killed", shape=Shape(close=False))
    assert read_all(closed) == read_all(killed)
    one, other = Run.open(closed).ranks[0], Run.open(killed).ranks[0]
    assert one.sites().equals(other.sites())
    assert one.steps().equals(other.steps())
    assert (one.open_journal, other.open_journal) == (False, True)
    assert one.num_events == other.num_events == 30
    assert one.info["finished"] is True
    assert one.size_bytes > 0 and other.size_bytes > 0


def test_tables_have_the_schemas(tmp_path: Path) -> None:
    record = Run.open(write_run(tmp_path)).ranks[0]
    assert record.sites().schema.equals(SITES)
    assert record.steps().schema.equals(STEPS)
    assert record.events(1).schema.equals(EVENTS)
    assert record.events(99).schema.equals(EVENTS)
    assert record.events(99).num_rows == 0


@pytest.mark.parametrize("close", [True, False])
def test_events_of_a_step(tmp_path: Path, close: bool) -> None:
    record = Run.open(write_run(tmp_path, shape=Shape(close=close))).ranks[0]
    for step in range(5):
        assert record.events(step)["seq"].to_pylist() == list(range(6 * step, 6 * step + 6))
    assert record.steps()["first_seq"].to_pylist() == [0, 6, 12, 18, 24]


def test_a_step_reads_only_its_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpdiff.store.writer.ROW_GROUP_EVENTS", 6)
    record = Run.open(write_run(tmp_path)).ranks[0]
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def spy(file: Any, index: int, **options: Any) -> pa.Table:
        if options["columns"] is None:
            read.append(index)
        return original(file, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    record.sites()
    record.steps()
    read.clear()
    assert record.events(3).num_rows == 6
    assert read == [1]


def test_opening_reads_no_rows(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=2)
    file_of(tmp_path, "events").write_bytes(b"")
    (tmp_path / "ranks" / "rank=00001.json").write_text("nonsense")
    assert list(Run.open(tmp_path).ranks) == [0, 1]


def test_ranks_come_from_every_folder(tmp_path: Path) -> None:
    write_run_json(tmp_path)
    for folder, rank in (("ranks", "rank=00002.json"), ("journal", "rank=00001"), ("x", "rank=3")):
        (tmp_path / folder / rank).mkdir(parents=True)
    (tmp_path / "events" / ".rank=00009.tmp").mkdir(parents=True)
    run = Run.open(str(tmp_path))
    assert list(run.ranks) == [1, 2]
    assert run.ranks[1].info == {}
    assert run.ranks[1].num_events == 0
    assert list(run.ranks[1].event_batches()) == []
    assert run.info["level"] == "layer"


def test_parquet_wins_over_a_journal_of_the_same_number(tmp_path: Path) -> None:
    write_run(tmp_path)
    journal = tmp_path / "journal" / "rank=00000" / "seg-00001.arrows"
    journal.write_bytes(b"nonsense")
    assert len(read_all(tmp_path)) == 30
    assert not Run.open(tmp_path).ranks[0].open_journal


def test_a_segment_without_its_events_file_is_read_from_the_journal(tmp_path: Path) -> None:
    write_run(tmp_path, shape=Shape(close=False, steps=1))
    (tmp_path / "sites" / "rank=00000").mkdir(parents=True)
    file_of(tmp_path, "sites").write_bytes(b"half")
    assert len(read_all(tmp_path)) == 6


def test_a_later_row_of_a_step_replaces_an_earlier_one(tmp_path: Path) -> None:
    write_run_json(tmp_path)
    writer = RankWriter(tmp_path, 0)
    writer.add_site(site(0))
    flush(writer, 0, 0, row=step_row(0, 0, 1))
    flush(writer, 0, 1, row=step_row(0, 0, 2))
    assert Run.open(tmp_path).ranks[0].steps()["events"].to_pylist() == [2]
    writer.close()
    assert Run.open(tmp_path).ranks[0].steps()["events"].to_pylist() == [2]


def test_also_when_the_later_row_is_in_the_next_segment(tmp_path: Path) -> None:
    write_run_json(tmp_path)
    writer = RankWriter(tmp_path, 0, limits=Shape().limits)
    writer.add_site(site(0))
    flush(writer, 0, 0, row=step_row(0, 0, 1))
    flush(writer, 1, 1, row=step_row(1, 1, 1))
    writer.end_segment_if_full()
    flush(writer, 1, 2, row=step_row(1, 1, 2))
    writer.close()
    record = Run.open(tmp_path).ranks[0]
    assert record.steps()["events"].to_pylist() == [1, 2]
    assert record.events(1)["seq"].to_pylist() == [1, 2]


def test_what_fails_in_the_background_is_raised_where_the_recording_can_stop(
    tmp_path: Path,
) -> None:
    write_run_json(tmp_path)
    writer = RankWriter(tmp_path, 0, limits=SegmentLimits(steps=1))
    (tmp_path / "events").write_text("no folder")
    flush(writer, 0, 0, row=step_row(0, 0, 1))
    writer.end_segment_if_full()
    assert writer._thread is not None
    writer._thread.join()
    with pytest.raises(OSError, match="events"):
        flush(writer, 1, 1, row=step_row(1, 1, 1))
    with pytest.raises(OSError, match="events"):
        writer.close()


def test_a_run_that_is_moved_while_it_is_recorded_is_not_made_anew(tmp_path: Path) -> None:
    write_run_json(tmp_path / "run")
    writer = RankWriter(tmp_path / "run", 0)
    flush(writer, 0, 0, row=step_row(0, 0, 1))
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="the run's folder is gone"):
        writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_a_shifted_run_has_other_step_numbers_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    record = Run.open(tmp_path / "run").ranks[0]
    shifted = Run.open(tmp_path / "run").shifted(5).ranks[0]
    numbers = record.steps()["step"].to_pylist()
    assert shifted.steps()["step"].to_pylist() == [number + 5 for number in numbers]
    for number in numbers:
        own, other = record.events(number), shifted.events(number + 5)
        assert other["step"].to_pylist() == [number + 5] * own.num_rows
        assert other.drop_columns(["step"]).equals(own.drop_columns(["step"]))
        assert other.schema.equals(own.schema)
    assert shifted.anew().shift == 5 and not shifted.events(numbers[0]).num_rows
