"""Checks a Parquet file before DuckDB reads it, which takes checksums and statistics on trust."""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from fpdiff.store.checks import damaged, too_large
from fpdiff.store.errors import StoreError
from fpdiff.store.events import one_piece
from fpdiff.store.parquet import TableFile
from fpdiff.store.places import local
from fpdiff.store.schema import TABLES


def verify_file(connection: duckdb.DuckDBPyConnection, file: TableFile) -> None:
    """Read everything once: page checksums, and the statistics by which DuckDB skips rows.

    The footer is under no checksum; rows skipped by wrong statistics would be missing without a
    word. DuckDB is asked for them because pyarrow ends the process at those of a damaged footer.

    Raises:
        StoreError: the file is damaged, foreign, or of a newer format.
    """
    groups = list(file.groups())
    try:
        chunks = connection.execute(
            "SELECT row_group_id, path_in_schema, coalesce(stats_min_value, stats_min), "
            "coalesce(stats_max_value, stats_max), stats_null_count "
            f"FROM parquet_metadata({quoted(pattern(local(file.path)))})"
        ).fetchall()
    except duckdb.OutOfMemoryException as error:
        raise too_large(file.path) from error
    except duckdb.Error as error:
        raise damaged(file.path, str(error).splitlines()[0]) from error
    for group, name, *statistics in chunks:
        # The statistics of a list are those of its items, which skip nothing.
        if name in TABLES[file.name].names and not fits(groups[group][name], *statistics):
            raise damaged(file.path, f"the statistics of column {name} do not fit its values")


class Verifier:
    """Reads files as `verify_file` does and goes on behind those that are damaged."""

    def __init__(self) -> None:
        """Connect to DuckDB, which takes longer than reading a small file."""
        self._connection = duckdb.connect(":memory:")

    def damages(self, files: Iterable[TableFile]) -> Iterator[StoreError]:
        """Yield the error of each file that is damaged."""
        for file in files:
            try:
                verify_file(self._connection, file)
            except StoreError as error:
                yield error


def quoted(text: str) -> str:
    """Return an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def pattern(path: Path) -> str:
    """Return the file pattern that matches only `path`."""
    return re.sub(r"([\[*?])", r"[\1]", str(path.resolve()))


def fits(column: pa.ChunkedArray, low: str | None, high: str | None, nulls: int | None) -> bool:
    """Return whether a column lies within its statistics, as `parquet_metadata` prints them."""
    if nulls is not None and nulls != column.null_count:
        return False
    if low is None and high is None:
        return True
    values, parse = _comparable(one_piece(column))
    if not len(values):
        return True
    limits = pc.min_max(values)
    try:
        return (low is None or parse(low) <= limits["min"].as_py()) and (
            high is None or limits["max"].as_py() <= parse(high)
        )
    except ValueError:
        return False


def _comparable(values: pa.Array) -> tuple[pa.Array, Callable[[str], Any]]:
    """Return the values that count, and what turns a statistic's text into one like them."""
    if isinstance(values, pa.ExtensionArray):  # A digest.
        return values.storage.drop_null().cast(pa.binary()), lambda text: uuid.UUID(text).bytes
    if pa.types.is_string(values.type):
        return values.drop_null().cast(pa.binary()), str.encode
    if pa.types.is_boolean(values.type):
        return values.drop_null().cast(pa.int8()), ("false", "true").index
    if pa.types.is_floating(values.type):
        numbers = values.drop_null()
        return numbers.filter(pc.invert(pc.is_nan(numbers))), float
    return values.drop_null(), int
