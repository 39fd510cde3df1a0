"""SQL over one or several runs: DuckDB views, and statements that only read."""

import contextlib
import importlib.resources
import json
import re
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa

from fpdiff.store.checks import naming, text, whole
from fpdiff.store.errors import QueryError
from fpdiff.store.objects import ObjectPath
from fpdiff.store.parquet import TableFile
from fpdiff.store.places import Place, local, local_folder
from fpdiff.store.run import RankRecord, Run
from fpdiff.store.schema import TABLES
from fpdiff.store.verify import pattern, quoted, verify_file

VIEWS = ("runs", "ranks", "steps", "sites", "events", "metrics", "inputs")
"""The views, from the whole to the detail."""

_RUNS = pa.schema(
    [(name, pa.string()) for name in ("run", "path", "level", "command", "created", "ended")]
    + [("exit_code", pa.int64())]
)
_RANKS = pa.schema(
    [
        ("run", pa.string()),
        ("rank", pa.int32()),
        ("hostname", pa.string()),
        ("finished", pa.bool_()),
        ("stopped", pa.string()),
        ("environment", pa.string()),
        ("blind_spots", pa.string()),
    ]
)
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE)
_FETCH_ROWS = 4096
_FETCHES = 8


class QueryResult:
    """The result of one statement, run when its rows are taken."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """Bind `sql`; use `query`, which checks it first."""
        self._connection = connection
        self._sql = sql
        with _query_errors():
            self._relation = connection.sql(sql)
        self.columns = [str(column) for column in self._relation.columns]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows; take them before the connection is used again.

        Raises:
            QueryError: a value cannot be computed.
        """
        with _query_errors():
            self._connection.execute(self._sql)
            try:
                while rows := self._connection.fetchmany(_FETCH_ROWS):
                    yield from rows
            finally:
                # From 2.0 on, DuckDB refuses other work while rows are left to fetch.
                getattr(self._connection, "abort", lambda: None)()

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table.

        Raises:
            QueryError: a value cannot be computed.
        """
        with _query_errors():
            return self._relation.to_arrow_table()


_HAS_PAGE_INDEX = "FROM duckdb_settings() WHERE name = 'parquet_use_page_index'"


def connect(runs: dict[str, Run], *, verify: bool = True) -> duckdb.DuckDBPyConnection:
    """Return an in-memory database with the VIEWS over `runs`.

    Args:
        runs: the runs by the label that column `run` shows.
        verify: read all Parquet files once first; DuckDB itself does not check page checksums.

    Raises:
        StoreError: a file is damaged or foreign.
    """
    connection = duckdb.connect(":memory:")
    if connection.execute(_HAS_PAGE_INDEX).fetchone():
        connection.execute("SET parquet_use_page_index = false")  # No checksum covers it.
    # What was fetched of runs on object storage is there as long as they are.
    weakref.finalize(connection, dict.clear, dict(runs))
    files = list(_files(runs))
    _fetch(files)
    for file in files:
        if verify:
            verify_file(connection, file)
        else:
            file.check_footer()
    connection.execute("CREATE SCHEMA stored")
    _store(connection, "runs", [_run_row(label, run) for label, run in runs.items()], _RUNS)
    rank_rows = [
        _rank_row(label, record) for label, run in runs.items() for record in run.ranks.values()
    ]
    _store(connection, "ranks", rank_rows, _RANKS)
    for name, schema in TABLES.items():
        parts = []
        for number, (label, run) in enumerate(runs.items()):
            tail = f"tail_{number}_{name}"
            connection.register(tail, _tail(run, name))
            parts += _selects(label, run, name, tail)
        body = "\nUNION ALL\n".join(parts) or _nothing(schema)
        connection.execute(f"CREATE VIEW stored.{name} AS {body}")
    views = importlib.resources.files("fpdiff.store") / "sql" / "views.sql"
    connection.execute(views.read_text(encoding="utf-8"))
    _lock(connection, runs)
    return connection


def split(sql: str) -> list[str]:
    """Return the statements in `sql`.

    Raises:
        QueryError: syntax error.
    """
    with _query_errors():
        return [str(statement.query).strip() for statement in duckdb.extract_statements(sql)]


def query(connection: duckdb.DuckDBPyConnection, sql: str) -> QueryResult:
    """Run one statement that reads.

    Raises:
        QueryError: it has an error, would write, or is none or several.
    """
    statements = split(sql)
    if len(statements) != 1:
        raise QueryError(f"fpdiff sql runs one statement at a time: this has {len(statements)}")
    kind = _kind(statements[0])
    if kind == "EXPLAIN":
        # EXPLAIN ANALYZE runs its statement, so that one must only read as well.
        explained = _EXPLAIN.sub("", statements[0], count=1)
        kind = _kind(explained) if explained != statements[0] else kind
    if kind != "SELECT":
        raise QueryError(
            f"fpdiff sql only reads: {kind} is refused; --format and --output keep a result"
        )
    return QueryResult(connection, statements[0])


def _kind(sql: str) -> str:
    try:
        (statement,) = duckdb.extract_statements(sql)
    except (duckdb.Error, ValueError):
        return "EXPLAIN"
    return str(statement.type).rpartition(".")[2]


@contextlib.contextmanager
def _query_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise QueryError(first_line) from error


def _files(runs: dict[str, Run]) -> Iterator[TableFile]:
    for run in runs.values():
        for record in run.ranks.values():
            # Read at once: where the run is being recorded they become Parquet, and go.
            _ = record.journals
            for segment in record.segments:
                yield from segment.files.values()


def _fetch(files: list[TableFile]) -> None:
    """Fetch side by side what is on object storage: each request waits for the network."""

    def fetch(file: TableFile) -> None:
        with naming(file.path):
            local(file.path)

    pool = ThreadPoolExecutor(_FETCHES)
    try:
        for _ in pool.map(fetch, (f for f in files if isinstance(f.path, ObjectPath))):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _store(
    connection: duckdb.DuckDBPyConnection, name: str, rows: list[dict[str, Any]], schema: pa.Schema
) -> None:
    connection.register(f"rows_of_{name}", pa.Table.from_pylist(rows, schema))
    connection.execute(f"CREATE TABLE stored.{name} AS FROM rows_of_{name}")
    connection.unregister(f"rows_of_{name}")


def _run_row(label: str, run: Run) -> dict[str, Any]:
    command = run.info.get("command")
    return {
        "run": label,
        "path": str(run.path),
        "level": text(run.info.get("level")),
        "command": " ".join(map(str, command)) if isinstance(command, list) else text(command),
        "created": text(run.info.get("created")),
        "ended": text(run.info.get("ended")),
        "exit_code": whole(run.info.get("exit_code")),
    }


def _rank_row(label: str, record: RankRecord) -> dict[str, Any]:
    return {
        "run": label,
        "rank": record.rank,
        "hostname": text(record.environment.get("hostname")),
        "finished": record.info.get("finished") is True,
        "stopped": text(record.info.get("stopped")),
        "environment": json.dumps(record.environment),
        "blind_spots": json.dumps(record.blind_spots),
    }


def _tail(run: Run, name: str) -> pa.Table:
    """Return what the journals of a run hold of a table, with the rank in front."""
    schema = TABLES[name].insert(0, pa.field("rank", pa.int32()))
    tables = [schema.empty_table()]
    for rank, record in run.ranks.items():
        for journal in record.journals:
            table = journal.table(name)
            ranks = pa.repeat(pa.scalar(rank, pa.int32()), table.num_rows)
            tables.append(table.add_column(0, schema.field(0), ranks).cast(schema))
    return pa.concat_tables(tables)


def _selects(label: str, run: Run, name: str, tail: str) -> list[str]:
    columns = ", ".join(TABLES[name].names)
    selects = [f"SELECT {quoted(label)} AS run, rank, {columns} FROM {tail}"]
    paths: dict[tuple[str, ...], list[Place]] = {}
    for record in run.ranks.values():
        for segment in record.segments:
            if segment.files:
                file = segment.files[name]
                paths.setdefault(tuple(file.columns), []).append(file.path)
    for present, alike in paths.items():
        files = ", ".join(quoted(pattern(local(path))) for path in alike)
        columns = ", ".join(
            column if column in present else f"NULL AS {column}" for column in TABLES[name].names
        )
        # Not hive_partitioning: it would also take a folder above the run, `lr=0.1` or even
        # `step=5`, for a column. Files that a condition on rank rules out are skipped all the same.
        selects.append(
            f"SELECT {quoted(label)} AS run, "
            r"regexp_extract(filename, 'rank=(\d+)[/\\][^/\\]*$', 1)::INTEGER AS rank, "
            f"{columns} FROM read_parquet([{files}], filename = true, hive_partitioning = false)"
        )
    return selects


def _nothing(schema: pa.Schema) -> str:
    columns = ", ".join(f"NULL AS {name}" for name in ("run", "rank", *schema.names))
    return f"SELECT {columns} WHERE false"


def _lock(connection: duckdb.DuckDBPyConnection, runs: dict[str, Run]) -> None:
    """Let statements see nothing but the files of the runs, and change no setting."""
    roots = [local_folder(run.path) for run in runs.values()]
    folders = {str(root.resolve()) for root in roots}
    # DuckDB compares the pattern that it is given, not the files that the pattern stands for.
    folders |= {pattern(root) for root in roots}
    listed = ", ".join(quoted(folder) for folder in sorted(folders))
    connection.execute("SET python_enable_replacements = false")
    connection.execute(f"SET allowed_directories = [{listed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
