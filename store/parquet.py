"""Reading a segment's Parquet files, with page checksums and our own schema checks."""

import functools
import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fpdiff.store.checks import check_nulls, check_schema, damaged, naming
from fpdiff.store.events import EventRows
from fpdiff.store.places import Place, announce, end_of, local, open_file
from fpdiff.store.schema import TABLES

_SMALL_BYTES = 1 << 18
_MANY_ROWS = 1 << 16

Known = dict[tuple[bytes, str, tuple[str, ...] | None], pa.Table]
"""What was read of small files, by their bytes, table and columns."""


class TableFile:
    """One Parquet file of the table `name`; nothing is read before it is asked for."""

    def __init__(
        self, folder: Place, file_name: str, name: str, known: Known | None = None
    ) -> None:
        """Remember where the file is.

        Args:
            folder: that the file is in.
            file_name: of the file.
            name: a key of TABLES.
            known: what is read of the file is kept in here, and taken from here if a file of the
                same bytes has been read before.
        """
        self.name = name
        self._place = folder, file_name
        self._known = known
        self._held: bytes | None = None

    @cached_property
    def path(self) -> Place:
        """The file; made when it is asked for, as most of a run's files never are."""
        folder, file_name = self._place
        return folder / file_name

    @property
    def num_rows(self) -> int:
        """Number of rows, from the footer."""
        return int(self._metadata.num_rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns; files of older versions lack some."""
        return list(self._metadata.schema.to_arrow_schema().names)

    def check_footer(self) -> None:
        """Check that the file holds our columns, without reading them.

        Raises:
            StoreError: the file is damaged, foreign, or of a newer format.
        """
        _ = self._metadata

    def announce(self) -> None:
        """Have the file fetched while others are worked on, where the system knows how."""
        with naming(self.path):
            announce(self.path)

    def read(self, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return all rows, or these columns of them, in the table's own order.

        Raises:
            StoreError: the file is damaged, foreign, or of a newer format.
        """
        if self._known is None:
            return self._read(columns)
        with naming(self.path):
            content = self._content()
        if content is None:
            return self._read(columns)
        key = content, self.name, columns
        table = self._known.get(key)
        if table is None:
            table = self._known[key] = self._read(columns)
        return table

    def groups(
        self,
        steps: npt.NDArray[np.int64] | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the row groups, or those that hold rows of some steps, one table each.

        Raises:
            StoreError: the file is damaged, foreign, or of a newer format.
        """
        with naming(self.path), self._open() as file:
            wanted = range(file.num_row_groups) if steps is None else _holding(file, steps)
            for index in wanted:
                yield self._group(file, index, columns)

    def _read(self, columns: tuple[str, ...] | None) -> pa.Table:
        groups = list(self.groups(columns=columns))
        if len(groups) == 1:
            return groups[0]
        return pa.concat_tables([no_rows(self.name, columns), *groups])

    @cached_property
    def _metadata(self) -> Any:
        with naming(self.path), self._open(only_footer=True) as file:
            return file.metadata

    def _open(self, *, only_footer: bool = False) -> pq.ParquetFile:
        """Open the file; its footer is checked the first time."""
        end = end_of(self.path, _SMALL_BYTES) if only_footer else None
        content = end if end is not None and _has_footer(end) else self._content()
        known = self.__dict__.get("_metadata")
        file = pq.ParquetFile(
            local(self.path) if content is None else pa.BufferReader(content),
            metadata=known,
            pre_buffer=content is None,
            page_checksum_verification=True,
            arrow_extensions_enabled=True,
        )
        if known is None:
            _check_footer(file, self.name, self.path)
            self.__dict__["_metadata"] = file.metadata
        return file

    def _content(self) -> bytes | None:
        """Return a small file whole: pyarrow would read it twice, footer and columns."""
        if self._held is not None:
            return self._held
        with open_file(local(self.path), buffering=0) as raw:
            size_bytes = os.fstat(raw.fileno()).st_size
            if not size_bytes:
                raise damaged(self.path, "it is empty")
            content = raw.read(size_bytes) if size_bytes <= _SMALL_BYTES else None
        if self._known is not None:
            self._held = content
        return content

    def _group(self, file: pq.ParquetFile, index: int, columns: tuple[str, ...] | None) -> pa.Table:
        num_rows = _rows_of_groups(file.metadata)[index]
        # pyarrow's threads cost more than they save where many small files are read, or few
        # columns of large ones, by several threads of ours already.
        is_large = columns is None and num_rows > _MANY_ROWS
        table = file.read_row_group(index, columns=columns, use_threads=is_large)
        table.validate(full=True)
        check_schema(table.schema, self.name, self.path, columns)
        check_nulls(table, self.path)
        if table.num_rows != num_rows:
            raise damaged(self.path, "a row group has not the rows it announces")
        schema = projected(self.name, columns)
        if table.schema.equals(schema, check_metadata=True):
            return table
        if not num_rows:
            return no_rows(self.name, columns)
        for place, column in enumerate(schema):
            if column.name not in table.column_names:  # Of an older version.
                table = table.add_column(place, column, pa.nulls(table.num_rows, column.type))
        return table.cast(schema)


_accepted: dict[str, tuple[Any, Any]] = {}
"""By table, the schema and metadata that the latest footer had which passed `check_schema`."""


def _check_footer(file: pq.ParquetFile, name: str, path: Place) -> None:
    metadata = file.metadata
    schema, texts = metadata.schema, metadata.metadata
    # To make Arrow's schema takes as long as to read a small file's rows. It follows from these
    # two, if no column is nested: comparing the former ignores what is not a leaf.
    known_schema, known_texts = _accepted.get(name, (None, None))
    if known_schema is None or texts != known_texts or not schema.equals(known_schema):
        check_schema(file.schema_arrow, name, path)
        if not any(pa.types.is_nested(field.type) for field in TABLES[name]):
            _accepted[name] = schema, texts
    if metadata.num_rows != sum(_rows_of_groups(metadata)):
        raise damaged(path, "its row groups do not add up")


def _rows_of_groups(metadata: Any) -> list[int]:
    if metadata.num_row_groups == 1:  # As most are; asking for its object takes long.
        return [metadata.num_rows]
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _has_footer(end: bytes) -> bool:
    """Return whether the end of a file has all of its footer, whose length precedes the mark."""
    return int.from_bytes(end[-8:-4], "little") + 8 <= len(end)


@functools.lru_cache(maxsize=256)
def projected(name: str, columns: tuple[str, ...] | None) -> pa.Schema:
    """Return the schema of a table with only some of its columns, in its own order."""
    schema = TABLES[name]
    if columns is None:
        return schema
    return pa.schema([f for f in schema if f.name in columns], metadata=schema.metadata)


@functools.lru_cache(maxsize=256)
def no_rows(name: str, columns: tuple[str, ...] | None) -> pa.Table:
    """Return an empty table with some columns of a table, in its own order."""
    return projected(name, columns).empty_table()


def _holding(file: pq.ParquetFile, steps: npt.NDArray[np.int64]) -> list[int]:
    """Return the row groups that hold rows of some steps."""
    # Not by the statistics: they are under no checksum, and asking for those of a damaged footer
    # ends the process. The step column is a few bytes, as it hardly changes within a row group.
    found = []
    for index in range(file.num_row_groups):
        rows = EventRows.of(file.read_row_group(index, columns=["step"], use_threads=False))
        if np.isin(rows.steps, steps).any():
            found.append(index)
    return found
