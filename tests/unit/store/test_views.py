import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow.parquet as pq
import pytest
from synthetic import Shape, digest, write_rank, write_run, write_run_json

from fpdiff.store import views
from fpdiff.store.errors import QueryError, StoreError
from fpdiff.store.run import Run
from fpdiff.store.schema import EVENTS
from fpdiff.store.views import VIEWS, connect, query
from fpdiff.store.writer import SegmentLimits


def ask(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return list(query(connection, sql).rows())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Names that a glob, an SQL string and Hive partitioning would each misread.
    root = tmp_path_factory.mktemp("views") / "step=7" / "it's [1]*"
    write_run(root, ranks=2)
    write_rank(root, 2, Shape(close=False, steps=3, info={}))
    return root


@pytest.fixture(scope="module")
def both(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect({"a": Run.open(root), "b'": Run.open(root)}) as connection:
        yield connection


def test_the_views_begin_with_the_run(both: duckdb.DuckDBPyConnection) -> None:
    for view in VIEWS:
        result = query(both, f"SELECT * FROM {view}")
        assert result.columns[0] == "run"
        assert {row[0] for row in result.rows()} == {"a", "b'"}


def test_a_segment_that_ends_while_files_are_verified_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a run that is being recorded: its journal becomes Parquet, and verifying takes long."""
    root = write_run(tmp_path / "run", ranks=2, shape=Shape(close=False, steps=3, info={}))
    journals = list(root.glob("journal/*/*.arrows"))
    assert len(journals) == 2

    def verify_slowly(*_: object) -> None:
        for journal in journals:
            journal.unlink(missing_ok=True)

    monkeypatch.setattr(views, "verify_file", verify_slowly)
    with connect({"a": Run.open(root)}) as connection:
        assert ask(connection, "SELECT rank, count(*) FROM events GROUP BY 1 ORDER BY 1") == [
            (0, 18),
            (1, 18),
        ]


def test_events(both: duckdb.DuckDBPyConnection) -> None:
    rows = ask(
        both,
        "SELECT step, seq, site, module, digest, shape, value FROM events "
        "WHERE run = 'a' AND rank = 1 ORDER BY seq",
    )
    assert len(rows) == 30
    assert rows[8] == (1, 8, 2, "", UUID(bytes=digest(1, 8)), [2, 3], 1.0)
    assert rows[7] == (1, 7, 1, "layers.1", UUID(bytes=digest(1, 7)), [2, 2], None)


def test_a_journal_and_parquet_make_one_table(both: duckdb.DuckDBPyConnection) -> None:
    counts = ask(both, "SELECT rank, count(*) FROM events GROUP BY ALL ORDER BY rank")
    assert counts == [(0, 60), (1, 60), (2, 36)]
    assert ask(both, "SELECT count(*) FROM steps WHERE rank = 2 AND run = 'a'") == [(3,)]


def test_inputs_expand_offsets_and_span(both: duckdb.DuckDBPyConnection) -> None:
    rows = ask(
        both,
        "SELECT seq, input_seq FROM inputs WHERE run = 'a' AND rank = 0 AND step = 1 ORDER BY ALL",
    )
    assert rows == [(seq, seq - 1) for seq in range(7, 12)]


def test_metrics(both: duckdb.DuckDBPyConnection) -> None:
    rows = ask(both, "SELECT DISTINCT step, name, value FROM metrics WHERE rank = 0 ORDER BY step")
    assert rows == [(step, "loss", float(step)) for step in range(5)]


def test_runs_and_ranks(both: duckdb.DuckDBPyConnection, root: Path) -> None:
    assert ask(both, "SELECT path, level, command, exit_code FROM runs WHERE run = 'a'") == [
        (str(root), "layer", "python train.py", 0)
    ]
    assert ask(
        both,
        "SELECT rank, hostname, finished, environment->>'torch' FROM ranks "
        "WHERE run = 'a' ORDER BY rank",
    ) == [(0, "node0", True, "2.13.0"), (1, "node0", True, "2.13.0"), (2, None, False, None)]


def test_only_a_rank_that_is_asked_for_is_read(both: duckdb.DuckDBPyConnection) -> None:
    ((_, plan),) = ask(both, "EXPLAIN ANALYZE SELECT sum(seq) FROM stored.events WHERE rank = 1")
    assert re.search(r"Scanning Files: 3/7\b", plan)


def test_no_runs_and_no_ranks(tmp_path: Path) -> None:
    for view in VIEWS:
        assert ask(connect({}), f"FROM {view}") == []
    write_run_json(tmp_path, command="python x.py", level=None, exit_code=None)
    connection = connect({"a": Run.open(tmp_path)}, verify=False)
    assert ask(connection, "SELECT command, level, exit_code FROM runs") == [
        ("python x.py", None, None)
    ]
    assert ask(connection, "FROM events") == []


def test_journals_only(tmp_path: Path) -> None:
    write_run(tmp_path, shape=Shape(steps=2, close=False, limits=SegmentLimits()))
    assert ask(connect({"a": Run.open(tmp_path)}), "SELECT count(*) FROM events") == [(12,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE x AS SELECT 1",
        "CREATE OR REPLACE VIEW events AS SELECT 1",
        "INSERT INTO runs VALUES (1)",
        "DELETE FROM stored.runs",
        "COPY (SELECT 1) TO 'x.csv'",
        "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
        "EXPLAIN (ANALYZE) COPY (SELECT 1) TO 'x.csv'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "PRAGMA enable_profiling",
        "CALL duckdb_settings()",
        "DROP VIEW events",
    ],
)
def test_writing_is_refused(both: duckdb.DuckDBPyConnection, statement: str) -> None:
    with pytest.raises(QueryError, match="^fpdiff sql only reads: "):
        query(both, statement)


def test_a_pivot_which_creates_a_type_is_refused(both: duckdb.DuckDBPyConnection) -> None:
    # One statement or two, by the version of DuckDB.
    with pytest.raises(QueryError, match="^fpdiff sql (only reads: |runs one statement at a time)"):
        query(both, "PIVOT sites ON phase USING count(*)")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELEC 1", "^Parser Error: syntax error at or near .SELEC.$"),
        ("SELECT nothing FROM runs", "^Binder Error: "),
        ("SELECT 1; SELECT 2", "one statement at a time: this has 2"),
        ("-- nothing", "one statement at a time: this has 0"),
        ("SELECT * FROM read_csv('/etc/hosts')", "^Permission Error"),
        ("SELECT * FROM VIEWS", "^Catalog Error"),  # No Python variable is a table.
    ],
)
def test_errors(both: duckdb.DuckDBPyConnection, statement: str, reason: str) -> None:
    with pytest.raises(QueryError, match=reason) as raised:
        query(both, statement)
    assert "\n" not in str(raised.value)


def test_an_error_while_rows_are_taken(both: duckdb.DuckDBPyConnection) -> None:
    result = query(both, "SELECT CAST('x' || range AS INTEGER) FROM range(3)")
    with pytest.raises(QueryError, match="^Conversion Error"):
        list(result.rows())
    with pytest.raises(QueryError, match="^Conversion Error"):
        result.to_arrow()


@pytest.mark.parametrize(
    "statement",
    ["EXPLAIN SELECT 1", "EXPLAIN (FORMAT json) SELECT 1", "DESCRIBE events", "VALUES (1)"],
)
def test_reading_statements(both: duckdb.DuckDBPyConnection, statement: str) -> None:
    assert ask(both, statement)


def test_rows_left_over_do_not_hinder_the_next_statement(both: duckdb.DuckDBPyConnection) -> None:
    rows = query(both, "SELECT * FROM range(100000)").rows()
    assert next(rows) == (0,)
    rows.close()  # type: ignore[attr-defined]
    assert query(both, "SELECT 2 AS two").to_arrow().to_pylist() == [{"two": 2}]


def test_damage_is_found_before_duckdb_reads(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "events" / "rank=00000" / "seg-00001.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes(byte ^ 255 for byte in data[40:200]) + data[200:])
    with pytest.raises(StoreError, match="seg-00001.parquet is damaged"):
        connect({"a": Run.open(tmp_path)})


@pytest.mark.parametrize("verify", [True, False])
def test_a_foreign_file_is_found_in_any_case(tmp_path: Path, verify: bool) -> None:
    write_run(tmp_path)
    path = tmp_path / "events" / "rank=00000" / "seg-00001.parquet"
    path.write_bytes((tmp_path / "steps" / "rank=00000" / "seg-00001.parquet").read_bytes())
    with pytest.raises(StoreError, match="seg-00001.parquet is not an fpdiff events file"):
        connect({"a": Run.open(tmp_path)}, verify=verify)


def test_values_outside_their_statistics(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "events" / "rank=00000" / "seg-00001.parquet"
    # Statistics lie in the footer as plain bytes: make the greatest seq, 23, a 7.
    pq.write_table(pq.read_table(path), path, write_page_index=False)
    data = path.read_bytes()
    greatest, less = (23).to_bytes(8, "little"), (7).to_bytes(8, "little")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert greatest in data[footer:]
    path.write_bytes(data[:footer] + data[footer:].replace(greatest, less))
    with pytest.raises(StoreError, match="the statistics of column seq do not fit"):
        connect({"a": Run.open(tmp_path)})


def test_the_columns_of_events_are_all_there(both: duckdb.DuckDBPyConnection) -> None:
    columns = query(both, "FROM events").columns
    assert set(EVENTS.names) - {"inputs"} <= set(columns)
