"""The recording side: one rank's events go to a journal at once and to Parquet in the background.

A step is safe once `flush` has returned: its batch is in the journal, in the kernel's hands, and
survives SIGKILL of this process. When the open segment has enough steps or bytes, a thread writes
its Parquet files under temporary names, renames them (`events` last, which commits the segment)
and removes the journal. No other rank is waited for and no other rank's file is touched.
"""

import contextlib
import errno
import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fpdiff.store.columns import EventColumns, steps_table
from fpdiff.store.errors import StoreError
from fpdiff.store.files import replacing, write_json
from fpdiff.store.schema import EVENTS, SITES, STEPS, TABLES, rank_name, segment_name

ROW_GROUP_EVENTS = 1 << 18
"""A row group ends at the first step boundary after so many events."""


@dataclass(frozen=True, kw_only=True)
class SegmentLimits:
    """When the open segment is closed: whichever comes first."""

    steps: int = 100
    size_bytes: int = 64 << 20


@dataclass
class _Segment:
    """What the open segment holds in memory."""

    index: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    sites: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    size_bytes: int = 0


class RankWriter:
    """Writes one rank's record below `root`.

    Raises (every method):
        OSError: the disk is full, the mount is gone; the caller stops recording.
    """

    def __init__(self, root: Path, rank: int, *, limits: SegmentLimits | None = None) -> None:
        """Claim `rank` in the run at `root`.

        Raises:
            StoreError: another process has claimed the rank.
        """
        self.root = root
        self.rank = rank
        self.num_events = 0
        self._limits = limits or SegmentLimits()
        self._folder = rank_name(rank)
        self._journals = root / "journal" / self._folder
        try:
            self._journals.mkdir(parents=True)
        except FileExistsError as exists:
            raise StoreError(
                f"rank {rank} of {root} is recorded by another process, which ran a module first"
            ) from exists
        self._segment = _Segment(0)
        self._pending_sites: list[dict[str, Any]] = []
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._closed: queue.SimpleQueue[_Segment | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def write_info(self, info: dict[str, Any]) -> None:
        """Write the rank's own description, `ranks/rank=NNNNN.json`."""
        folder = self.root / "ranks"
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{self._folder}.json", info)

    def add_site(self, row: dict[str, Any]) -> None:
        """Add a row of SITES; it is on disk with the next flush."""
        self._pending_sites.append(row)

    def flush(self, events: EventColumns, step: dict[str, Any] | None) -> None:
        """Append events to the journal, with the row of STEPS that they complete, if any.

        A later row of the same step replaces an earlier one: a step may be closed provisionally
        after its optimizer and again when something else turns out to belong to it.
        """
        if self._failure is not None:
            raise self._failure
        batch = events.to_batch()
        self._append_to_journal(batch, step)
        self.num_events += len(events)

    def end_segment_if_full(self) -> None:
        """Hand the open segment to the background thread if it has reached its limits.

        Called between steps, so segments and row groups end at step boundaries.
        """
        full = (
            len(self._segment.steps) >= self._limits.steps
            or self._segment.size_bytes >= self._limits.size_bytes
        )
        if full:
            self._end_segment()

    def close(self) -> None:
        """Turn the open segment into Parquet and wait until everything is on disk."""
        if self._segment.batches:
            self._end_segment()
        if self._thread is not None:
            self._closed.put(None)
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """Stop without writing: what is in the journal stays as it is. Raises nothing."""
        if self._stream is not None:
            self._stream = None
            # Closing writes what is buffered, onto a disk that may be full or gone.
            with contextlib.suppress(OSError):
                self._file.close()
        if self._thread is not None:
            self._closed.put(None)
            self._thread = None

    def _append_to_journal(self, batch: pa.RecordBatch, step: dict[str, Any] | None) -> None:
        if self._stream is None:
            path = self._journals / f"{segment_name(self._segment.index)}.arrows"
            self._file = path.open("wb")
            self._stream = pa.ipc.new_stream(self._file, EVENTS)
        sites, self._pending_sites = self._pending_sites, []
        metadata = {"sites": json.dumps(sites), "step": json.dumps(step, default=bytes.hex)}
        self._stream.write_batch(batch, custom_metadata=metadata)
        self._file.flush()
        segment = self._segment
        segment.batches.append(batch)
        segment.sites.extend(sites)
        segment.size_bytes += batch.nbytes
        if step is not None:
            segment.steps[step["step"]] = step

    def _end_journal(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._file.close()
            self._stream = None

    def _end_segment(self) -> None:
        self._end_journal()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_segments, name="fpdiff-writer", daemon=True
            )
            self._thread.start()
        self._closed.put(self._segment)
        self._segment = _Segment(self._segment.index + 1)

    def _write_segments(self) -> None:
        while (segment := self._closed.get()) is not None:
            try:
                self._write_segment(segment)
            except Exception as failure:  # noqa: BLE001
                # Raised again by the next flush, in the thread that can stop the recording.
                self._failure = failure
                return

    def _write_segment(self, segment: _Segment) -> None:
        if not self.root.is_dir():  # Removed or moved: it is not made anew.
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(self.root))
        write_segment(
            self.root,
            self.rank,
            segment.index,
            sites=pa.Table.from_pylist(segment.sites, SITES),
            steps=steps_table(list(segment.steps.values())),
            batches=segment.batches,
        )
        (self._journals / f"{segment_name(segment.index)}.arrows").unlink()


def write_segment(
    root: Path,
    rank: int,
    index: int,
    *,
    sites: pa.Table,
    steps: pa.Table,
    batches: list[pa.RecordBatch],
) -> None:
    """Write a segment's Parquet files, `events` last, which commits it.

    Args:
        root: folder of the run.
        rank: the rank.
        index: number of the segment.
        sites: the sites that are new in it.
        steps: the steps that it closes.
        batches: its events; no batch holds those of two steps.

    Raises:
        OSError: the folder is not writable or the disk is full.
    """
    name = f"{segment_name(index)}.parquet"
    for table_name, table in (("sites", sites), ("steps", steps)):
        path = root / table_name / rank_name(rank) / name
        with parquet_writer(path, TABLES[table_name]) as writer:
            writer.write_table(table)
    with parquet_writer(root / "events" / rank_name(rank) / name, EVENTS) as writer:
        for group in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(group, EVENTS), row_group_size=1 << 30)


@contextlib.contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Yield a writer of a Parquet file that appears under its name when it is whole."""
    # Digests are random bytes: PLAIN and without a dictionary. Integer columns grow by small
    # steps: DELTA_BINARY_PACKED leaves zstd almost nothing to store.
    integers = {f.name: "DELTA_BINARY_PACKED" for f in schema if pa.types.is_integer(f.type)}
    repetitive = [f.name for f in schema if pa.types.is_string(f.type)]
    if schema is EVENTS:
        repetitive += ["inputs.list.element", "kernels.list.element"]
    # Of step rows a comparison reads a file for every hundred, so what a file costs by itself
    # counts: zstd's start, and a copy of the schema in Arrow's own form, a third of the file.
    is_small = schema in (STEPS, SITES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as temporary,
        pq.ParquetWriter(
            temporary,
            schema,
            compression="lz4" if is_small else "zstd",
            use_dictionary=repetitive,
            column_encoding=integers,
            write_page_checksum=True,
            # Else each page's header has statistics by which DuckDB 2 skips rows, and no checksum
            # covers them. None covers the index either, but `views` leaves that unused.
            write_page_index=True,
            store_schema=False,
        ) as writer,
    ):
        writer.add_key_value_metadata(schema.metadata)
        yield writer


def _row_groups(batches: list[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    groups: list[list[pa.RecordBatch]] = [[]]
    count = 0
    step = None
    for batch in batches:
        if not len(batch):
            continue
        if count >= ROW_GROUP_EVENTS and batch["step"][0] != step:
            groups.append([])
            count = 0
        groups[-1].append(batch)
        count += len(batch)
        step = batch["step"][0]
    return groups
