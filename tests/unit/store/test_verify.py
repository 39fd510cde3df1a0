import contextlib
import itertools
import math
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Shape, write_run

from fpdiff.store.errors import QueryError, StoreError
from fpdiff.store.run import Run
from fpdiff.store.verify import fits, pattern, quoted, verify_file
from fpdiff.store.views import connect, query

LOW, HIGH = (uuid.UUID(int=number << 120) for number in (1, 0xF0))


def digests(*values: uuid.UUID) -> pa.Array:
    storage = pa.array([value.bytes for value in values], pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


@pytest.mark.parametrize(
    ("values", "low", "high", "nulls", "expected"),
    [
        (pa.array([1, 5, None]), "1", "5", 1, True),
        (pa.array([1, 5, None]), "0", "9", None, True),
        (pa.array([1, 5, None]), "1", "5", 0, False),
        (pa.array([1, 5]), "2", "5", 0, False),
        (pa.array([1, 5]), "1", "4", 0, False),
        (pa.array([1, 5]), None, None, 0, True),
        (pa.array([1, 5]), "nonsense", "5", 0, False),
        (pa.array([-0.0, 1.0, math.nan]), "0.0", "1.0", 0, True),
        (pa.array([math.nan]), "0.0", "1.0", 0, True),
        (pa.array([math.inf]), "0.0", "1.0", 0, False),
        (pa.array(["a", "ü"]), "a", "ü", 0, True),
        (pa.array(["a", "ü"]), "a", "b", 0, False),
        (digests(LOW, HIGH), str(LOW), str(HIGH), 0, True),
        (digests(LOW, HIGH), str(LOW), str(LOW), 0, False),
    ],
)
def test_statistics(values: Any, low: Any, high: Any, nulls: Any, expected: bool) -> None:
    assert fits(pa.chunked_array([values]), low, high, nulls) is expected


def test_names_that_sql_and_globs_misread(tmp_path: Path) -> None:
    path = tmp_path / "it's [a]*?"
    path.write_text("x")
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT file FROM glob({quoted(pattern(path))})").fetchall()
    assert found == [(str(path),)]


def test_what_duckdb_cannot_read_is_named(tmp_path: Path) -> None:
    file = Run.open(write_run(tmp_path)).ranks[0].segments[0].files["events"]
    with duckdb.connect() as connection:
        connection.execute("SET enable_external_access = false")
        with pytest.raises(StoreError, match="events/rank=00000/seg-00000.parquet is damaged: Per"):
            verify_file(connection, file)


def test_a_flipped_bit_in_the_header_of_a_page_hides_no_row(tmp_path: Path) -> None:
    """What of it DuckDB would skip rows by, no checksum covers."""
    root = write_run(tmp_path, shape=Shape(steps=1))
    path = root / "events" / "rank=00000" / "seg-00000.parquet"
    content = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunk = next(
        c for i in range(group.num_columns) if (c := group.column(i)).path_in_schema == "seq"
    )
    begin, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    last = chunk.statistics.max
    expected = _from(root, last)
    assert expected
    for place, bit in itertools.product(range(begin, end), range(0, 8, 2)):
        path.write_bytes(
            content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
        )
        with contextlib.suppress(StoreError, QueryError):
            assert _from(root, last) == expected, (place - begin, bit)


def _from(root: Path, seq: int) -> list[Any]:
    with connect({"a": Run.open(root)}) as connection:
        return sorted(query(connection, f"SELECT seq FROM events WHERE seq >= {seq}").rows())
