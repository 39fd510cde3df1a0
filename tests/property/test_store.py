"""What is written is read again, and what is not whole is never read as something else."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Shape, kill, site, step_row, write_run, write_run_json

from fpdiff.store.columns import EventColumns
from fpdiff.store.errors import QueryError, StoreError
from fpdiff.store.run import RankRecord, Run
from fpdiff.store.schema import KINDS, PHASES
from fpdiff.store.views import connect, query
from fpdiff.store.writer import RankWriter, SegmentLimits

NASTY = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", "a.b", "'", "\0", "NaN", "ü"]
)


@dataclass(frozen=True)
class Event:
    site: int
    microbatch: int
    digest: bytes
    offsets: list[int]
    span: int
    value: float | None
    stats: tuple[float, float, int] | None


@dataclass(frozen=True)
class Flush:
    events: list[Event]
    closes: bool  # the step, perhaps provisionally
    ends: bool  # the next flush belongs to another step


floats = st.sampled_from(NASTY) | st.floats()
events = st.builds(
    Event,
    st.integers(0, 4),
    st.integers(0, 2**31 - 1),
    st.binary(min_size=16, max_size=16),
    st.lists(st.integers(1, 2**31 - 1), max_size=3),
    st.integers(0, 2**31 - 1),
    st.none() | floats,
    st.none() | st.tuples(floats, floats, st.integers(-(2**63), 2**63 - 1)),
)
flushes = st.lists(
    st.builds(Flush, st.lists(events, max_size=4), st.booleans(), st.booleans()), max_size=6
)
site_changes = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(PHASES),
        "kind": st.sampled_from(KINDS),
        "module": NAMES,
        "op": st.none() | NAMES,
        "shape": st.lists(st.integers(0, 2**63 - 1), max_size=3),
    }
)
sites = st.lists(site_changes, min_size=5, max_size=5)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def write(root: Path, rows: list[dict[str, Any]], parts: list[Flush], close: bool) -> list[Any]:
    """Write a rank and return what must be read: sites, steps and events."""
    write_run_json(root)
    writer = RankWriter(root, 0, limits=SegmentLimits(steps=2))
    for row in rows:
        writer.add_site(row)
    steps: dict[int, dict[str, Any]] = {}
    expected = []
    step = seq = first = 0
    for part in parts:
        columns = EventColumns(step, seq)
        for index, event in enumerate(part.events):
            columns.append(
                event.microbatch,
                event.site,
                event.digest,
                [seq - offset for offset in event.offsets],
                event.span,
            )
            if event.value is not None:
                columns.values[index] = event.value
            if event.stats is not None:
                columns.stats[index] = event.stats
            expected.append((step, seq, event))
            seq += 1
        row = step_row(step, first, seq - first, microbatches=len(expected))
        if part.closes:
            steps[step] = row
        writer.flush(columns, row if part.closes else None)
        if part.ends:
            step, first = step + 1, seq
            writer.end_segment_if_full()
    if close:
        writer.close()
    else:
        kill(writer)
    written = rows if parts else []  # A site is on disk with the next flush.
    return [written, list(steps.values()), expected]


def bits(value: float | None) -> str | None:
    """A float as text that tells zeros apart and NaN from nothing."""
    return None if value is None else float(value).hex()


def read_events(record: RankRecord) -> list[tuple[int, int, Event]]:
    return [as_event(row) for batch in record.event_batches() for row in batch.to_pylist()]


def as_event(row: dict[str, Any]) -> tuple[int, int, Event]:
    stats = None if row["l2"] is None else (row["l2"], row["absmax"], row["nonfinite"])
    event = Event(
        row["site"],
        row["microbatch"],
        row["digest"].bytes,
        row["inputs"],
        row["span"],
        row["value"],
        stats,
    )
    return row["step"], row["seq"], event


def comparable(entry: tuple[int, int, Event]) -> tuple[Any, ...]:
    step, seq, event = entry
    stats = event.stats and (bits(event.stats[0]), bits(event.stats[1]), event.stats[2])
    return (step, seq, *vars(event).values())[:-2] + (bits(event.value), stats)


@settings(deadline=None, max_examples=60)
@given(changes=sites, parts=flushes, close=st.booleans())
def test_rows_are_read_as_they_were_written(
    changes: list[dict[str, Any]], parts: list[Flush], close: bool
) -> None:
    rows = [site(number, **change) for number, change in enumerate(changes)]
    with folder() as root:
        written_sites, written_steps, written_events = write(root, rows, parts, close)
        record = Run.open(root).ranks[0]
        assert record.sites().to_pylist() == written_sites
        read_steps: list[dict[str, Any]] = [
            {
                key: value if value is None or isinstance(value, int) else value.bytes
                for key, value in row.items()
            }
            for row in record.steps().to_pylist()
        ]
        # Steps without events have equal first_seq, so their order is free.
        blank = dict.fromkeys(record.steps().schema.names)
        assert sorted(read_steps, key=lambda row: row["step"]) == [
            blank | row for row in sorted(written_steps, key=lambda row: row["step"])
        ]
        read = read_events(record)
        assert [*map(comparable, read)] == [*map(comparable, written_events)]
        assert record.num_events == len(written_events)
        for step in {entry[0] for entry in written_events}:
            of_step = [as_event(row) for row in record.events(step).to_pylist()]
            assert [*map(comparable, of_step)] == [
                comparable(entry) for entry in written_events if entry[0] == step
            ]


@settings(deadline=None, max_examples=60)
@given(parts=flushes, data=st.data())
def test_a_cut_journal_yields_a_prefix(parts: list[Flush], data: st.DataObject) -> None:
    parts = [Flush(part.events, True, False) for part in parts] or [Flush([], True, False)]
    with folder() as root:
        *_, written = write(root, [site(number) for number in range(5)], parts, close=False)
        journal = root / "journal" / "rank=00000" / "seg-00000.arrows"
        content = journal.read_bytes()
        journal.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        record = Run.open(root).ranks[0]
        read = [*map(comparable, read_events(record))]
        assert read == [*map(comparable, written)][: len(read)]
        assert record.steps().num_rows == bool(record.sites().num_rows)


def ask_everything(root: Path) -> str:
    with connect({"a": Run.open(root)}) as connection:
        return repr([sorted(map(repr, query(connection, sql).rows())) for sql in QUESTIONS])


QUESTIONS = (
    "FROM sites",
    "FROM steps",
    "FROM events WHERE step = 1",
    "FROM events WHERE seq > 9",
    "FROM events WHERE value > 1",
    "FROM events WHERE value IS NOT NULL",
    "FROM sites WHERE module = 'layers.1'",
)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), shape=Shape(steps=3))


def read_everything(root: Path) -> str:
    record = Run.open(root).ranks[0]
    rows = [record.sites().to_pylist(), record.steps().to_pylist()]
    rows += [record.events(step).to_pylist() for step in range(3)]
    rows += [batch.to_pylist() for batch in record.event_batches()]
    return repr(rows)


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, float, int | None]:
    """A table, a relative position, and the bit to flip there; None cuts the file off."""
    table = draw(st.sampled_from(["sites", "steps", "events"]))
    position = draw(st.floats(0, 1, exclude_max=True))
    return table, position, draw(st.none() | st.integers(0, 7))


@contextmanager
def damaged(root: Path, damage: tuple[str, float, int | None]) -> Iterator[Path]:
    table, position, bit = damage
    path = root / table / "rank=00000" / "seg-00000.parquet"
    content = path.read_bytes()
    index = int(position * len(content))
    tail = b"" if bit is None else bytes([content[index] ^ (1 << bit)]) + content[index + 1 :]
    path.write_bytes(content[:index] + tail)
    try:
        yield path
    finally:
        path.write_bytes(content)


@settings(deadline=None, max_examples=150)
@given(damage=damages())
def test_damaged_parquet_is_an_error_or_reads_the_same(
    small_run: Path, damage: tuple[str, float, int | None]
) -> None:
    expected = read_everything(small_run)
    with damaged(small_run, damage) as path:
        try:
            assert read_everything(small_run) == expected
        except StoreError as error:
            # A row group lost from the footer shows in the rank's events as a whole.
            assert str(path.parent) in str(error)
            assert len(str(error).splitlines()) == 1


@settings(deadline=None, max_examples=50)
@given(damage=damages())
def test_sql_on_damaged_parquet_is_an_error_or_answers_the_same(
    small_run: Path, damage: tuple[str, float, int | None]
) -> None:
    expected = ask_everything(small_run)
    with damaged(small_run, damage):
        try:
            assert ask_everything(small_run) == expected
        except (StoreError, QueryError) as error:
            assert len(str(error).splitlines()) == 1
