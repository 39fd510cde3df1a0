"""Reading a segment's Parquet files, with page checksums and our own schema checks."""

import functools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fpdiff.store.checks import check_nulls, check_schema, damaged, naming
from fpdiff.store.places import Place, end_of, local, size_of
from fpdiff.store.schema import TABLES

_SMALL_BYTES = 1 << 18
_MANY_ROWS = 1 << 16


class TableFile:
    """One Parquet file of the table `name`; nothing is read before it is asked for."""

    def __init__(self, path: Place, name: str) -> None:
        """Remember the path; `name` is a key of TABLES."""
        self.path = path
        self.name = name

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

    def read(self, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return all rows, or these columns of them, in the table's own order.

        Raises:
            StoreError: the file is damaged, foreign, or of a newer format.
        """
        schema = projected(self.name, columns)
        return pa.concat_tables([schema.empty_table(), *self.groups(columns=columns)])

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

    @cached_property
    def _metadata(self) -> Any:
        with naming(self.path), self._open(only_footer=True) as file:
            return file.metadata

    def _open(self, *, only_footer: bool = False) -> pq.ParquetFile:
        """Open the file; its footer is checked the first time."""
        size_bytes = size_of(self.path)
        if not size_bytes:
            raise damaged(self.path, "it is empty")
        end = end_of(self.path, _SMALL_BYTES) if only_footer else None
        if end is not None and _has_footer(end):
            source = pa.BufferReader(end)
        else:
            path = local(self.path)
            # A small file is read at once; pyarrow would read it twice, footer and columns.
            source = pa.BufferReader(path.read_bytes()) if size_bytes <= _SMALL_BYTES else path
        known = self.__dict__.get("_metadata")
        file = pq.ParquetFile(source, metadata=known, page_checksum_verification=True)
        if known is None:
            check_schema(file.schema_arrow, self.name, self.path)
            metadata = self.__dict__["_metadata"] = file.metadata
            groups = range(metadata.num_row_groups)
            if metadata.num_rows != sum(metadata.row_group(i).num_rows for i in groups):
                raise damaged(self.path, "its row groups do not add up")
        return file

    def _group(self, file: pq.ParquetFile, index: int, columns: tuple[str, ...] | None) -> pa.Table:
        num_rows = file.metadata.row_group(index).num_rows
        # pyarrow's threads cost more than they save where many small files are read.
        is_large = num_rows > _MANY_ROWS
        table = file.read_row_group(index, columns=columns, use_threads=is_large)
        table.validate(full=True)
        check_schema(table.schema, self.name, self.path, columns)
        check_nulls(table, self.path)
        if table.num_rows != num_rows:
            raise damaged(self.path, "a row group has not the rows it announces")
        schema = projected(self.name, columns)
        for place, column in enumerate(schema):
            if column.name not in table.column_names:  # Of an older version.
                table = table.add_column(place, column, pa.nulls(table.num_rows, column.type))
        return table if table.schema.equals(schema, check_metadata=True) else table.cast(schema)


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


def _holding(file: pq.ParquetFile, steps: npt.NDArray[np.int64]) -> list[int]:
    """Return the row groups that hold rows of some steps."""
    # Not by the statistics: they are under no checksum, and asking for those of a damaged footer
    # ends the process. The step column is a few bytes, as it hardly changes within a row group.
    found = []
    for index in range(file.num_row_groups):
        column = file.read_row_group(index, columns=["step"], use_threads=False)["step"]
        if np.isin(column.to_numpy(), steps).any():
            found.append(index)
    return found
