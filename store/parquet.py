"""Reading a segment's Parquet files, with page checksums and our own schema checks."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fpdiff.store.checks import check_nulls, check_schema, damaged, naming
from fpdiff.store.schema import TABLES


class TableFile:
    """One Parquet file of the table `name`; nothing is read before it is asked for."""

    def __init__(self, path: Path, name: str) -> None:
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

    def read(self) -> pa.Table:
        """Return all rows.

        Raises:
            StoreError: the file is damaged, foreign, or of a newer format.
        """
        return pa.concat_tables([TABLES[self.name].empty_table(), *self.groups()])

    def groups(self, step: int | None = None) -> Iterator[pa.Table]:
        """Yield the row groups, or those that may hold rows of `step`, one table each.

        Raises:
            StoreError: the file is damaged, foreign, or of a newer format.
        """
        metadata = self._metadata
        with naming(self.path), self._open(metadata) as file:
            for index in range(metadata.num_row_groups):
                if step is None or _holds(file, index, step):
                    yield self._group(file, index)

    @cached_property
    def _metadata(self) -> Any:
        with naming(self.path), self._open() as file:
            check_schema(file.schema_arrow, self.name, TABLES[self.name], self.path)
            metadata = file.metadata
            groups = range(metadata.num_row_groups)
            if metadata.num_rows != sum(metadata.row_group(i).num_rows for i in groups):
                raise damaged(self.path, "its row groups do not add up")
            return metadata

    def _open(self, metadata: Any = None) -> pq.ParquetFile:
        if not self.path.stat().st_size:
            raise damaged(self.path, "it is empty")
        return pq.ParquetFile(self.path, metadata=metadata, page_checksum_verification=True)

    def _group(self, file: pq.ParquetFile, index: int) -> pa.Table:
        table = file.read_row_group(index)
        table.validate(full=True)
        check_schema(table.schema, self.name, TABLES[self.name], self.path)
        check_nulls(table, self.path)
        if table.num_rows != self._metadata.row_group(index).num_rows:
            raise damaged(self.path, "a row group has not the rows it announces")
        schema = TABLES[self.name]
        for place, column in enumerate(schema):
            if column.name not in table.column_names:  # Of an older version.
                table = table.add_column(place, column, pa.nulls(table.num_rows, column.type))
        return table.cast(schema)


def _holds(file: pq.ParquetFile, index: int, step: int) -> bool:
    # Not by the statistics: they are under no checksum, and asking for those of a damaged footer
    # ends the process. The step column is a few bytes, as it hardly changes within a row group.
    steps = file.read_row_group(index, columns=["step"])["step"]
    return bool(pc.any(pc.equal(steps, step)).as_py())
