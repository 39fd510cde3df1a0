"""Writes the consolidated tables that `store/compact.py` reads."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fpdiff.store.bucket import is_url
from fpdiff.store.compact import (
    COMPACTED,
    FOLDER,
    Part,
    compact_schema,
    own_files,
    table_file,
)
from fpdiff.store.errors import StoreError
from fpdiff.store.files import write_json
from fpdiff.store.progress import Progress
from fpdiff.store.run import RankRecord, Run
from fpdiff.store.schema import VERSION
from fpdiff.store.summary import state_of
from fpdiff.store.writer import parquet_writer

ROW_GROUP_ROWS = 1 << 16
"""A row group ends with the rank that brings it to so many rows."""


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What was consolidated.

    Attributes:
        ranks: whose tables are; `left_out` those whose recording has not ended.
        files: of how many files they were.
        size_bytes: of what was written, or found if `is_new` is false.
        is_new: whether anything had to be done.
    """

    ranks: list[int]
    left_out: list[int]
    files: int
    size_bytes: int
    is_new: bool


def compact_run(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Compacted:
    """Write a run's step rows and sites of all ranks into one file each.

    What each rank has stays as it is. Killed half-way, the run is as it was, or not consolidated;
    the next call begins anew.

    Args:
        path: folder of the run.
        progress: called with (ranks done, ranks in all), counting each rank once a table.

    Raises:
        StoreError: the run is damaged or has not ended, or the files cannot be written.
    """
    if is_url(path):
        raise StoreError(
            f"{path} is on object storage: compact the folder that was recorded to, before"
            " `fpdiff upload`"
        )
    root = Path(path)
    run = Run.open(path, compact=False)
    if run.info.get("ended") is None:
        raise StoreError(
            f"{run.path} has not ended: compact it when its command has; one whose recording was"
            " killed is read as it is"
        )
    ranks = [rank for rank, record in run.ranks.items() if _has_ended(record)]
    if not ranks:
        raise StoreError(f"{run.path} holds no rank whose recording has ended: nothing to compact")
    is_new = not _is_current(root, ranks)
    if is_new:
        try:
            _write(run, root, ranks, progress)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"{root / FOLDER} cannot be written: {error.strerror or error}; free some room"
                " or make it writable"
            ) from error
    return Compacted(
        ranks=ranks,
        left_out=sorted(run.ranks.keys() - set(ranks)),
        files=sum(own_files(root, name, rank)[0] for name in COMPACTED for rank in ranks),
        size_bytes=sum((root / FOLDER / table_file(name)).stat().st_size for name in COMPACTED),
        is_new=is_new,
    )


def _has_ended(record: RankRecord) -> bool:
    return state_of(record) != "open" and not record.open_journal


def _is_current(root: Path, ranks: list[int]) -> bool:
    """Return whether the run is consolidated as it is; what cannot be read is written anew."""
    try:
        run = Run.open(root)
        # Reading everything finds damage too.
        return all(_can_be_read(run.ranks[rank]) for rank in ranks)
    except StoreError:
        return False


def _can_be_read(record: RankRecord) -> bool:
    return record.is_compact and record.steps() is not None and record.sites() is not None


def _write(run: Run, root: Path, ranks: list[int], progress: Progress | None) -> None:
    folder = root / FOLDER
    # The index goes first and comes last: without it nothing else in the folder counts.
    (folder / "index.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index: dict[str, Any] = {"schema": VERSION}
    for number, name in enumerate(COMPACTED):
        parts = index[name] = {}
        for rank, part in _write_table(run, root, ranks, name):
            parts[str(rank)] = astuple(part)
            if progress is not None:
                progress(number * len(ranks) + len(parts), len(ranks) * len(COMPACTED))
    write_json(folder / "index.json", index)


def _write_table(run: Run, root: Path, ranks: list[int], name: str) -> Iterator[tuple[int, Part]]:
    """Write one consolidated table; yield each rank with its share, which is whole at the end."""
    with parquet_writer(root / FOLDER / table_file(name), compact_schema(name)) as writer:
        for group, tables in enumerate(_groups(run, ranks, name)):
            writer.write_table(pa.concat_tables(tables.values()), row_group_size=1 << 30)
            for rank, table in tables.items():
                yield rank, Part(group, table.num_rows, *own_files(root, name, rank))


def _groups(run: Run, ranks: list[int], name: str) -> Iterator[dict[int, pa.Table]]:
    """Yield the tables of as many ranks as make up a row group."""
    tables: dict[int, pa.Table] = {}
    num_rows = 0
    for rank in ranks:
        tables[rank] = _with_place(rank, run.ranks[rank].anew(), name)
        num_rows += tables[rank].num_rows
        if num_rows >= ROW_GROUP_ROWS:
            yield tables
            tables, num_rows = {}, 0
    if tables:
        yield tables


def _with_place(rank: int, record: RankRecord, name: str) -> pa.Table:
    """Return a rank's rows of a table with their rank and segment in front."""
    schema = compact_schema(name)
    parts = [schema.empty_table()]
    for number, segment in enumerate(record.segments):
        rows = segment.files[name].read()
        place = (pa.repeat(pa.scalar(value, pa.int32()), rows.num_rows) for value in (rank, number))
        parts.append(pa.table([*place, *rows.columns], schema=schema))
    return pa.concat_tables(parts)
