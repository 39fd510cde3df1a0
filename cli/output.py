"""Results of statements as a table, CSV, JSON or Parquet."""

import contextlib
import csv
import decimal
import enum
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq
from rich import box
from rich.table import Table

from fpdiff.cli.console import data_console, print_data, printable, talk
from fpdiff.store.errors import QueryError
from fpdiff.store.files import replacing
from fpdiff.store.views import QueryResult

TABLE_ROWS = 100
"""A table shows so many rows; other formats have no limit."""


class Format(str, enum.Enum):
    """How a result is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def write_result(result: QueryResult, form: Format, output: Path | None = None) -> None:
    """Write a result to `output`, or to stdout.

    Raises:
        QueryError: the file exists or cannot be written, or a value cannot be computed.
    """
    if form in (Format.JSON, Format.PARQUET):
        _refuse_equal_names(result.columns)
    if form is Format.PARQUET:
        _write_parquet(result, output)
    elif output is None:
        _WRITERS[form](result, sys.stdout)
    else:
        with _creating(output) as temporary, temporary.open("w", encoding="utf-8") as file:
            _WRITERS[form](result, file)


def _write_table(result: QueryResult, file: IO[str]) -> None:
    rows = result.rows()
    shown = list(itertools.islice(rows, TABLE_ROWS))
    more = next(rows, None) is not None
    rows.close()  # type: ignore[attr-defined]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(result.columns):
        numeric = all(_is_number(row[index]) for row in shown) and bool(shown)
        table.add_column(printable(column), justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        table.add_row(*(printable("NULL" if cell is None else cell) for cell in row))
    console = data_console(wide=True)
    if file is not sys.stdout:
        console.file, console.width, console.no_color = file, 1 << 16, True
    print_data(console, table)
    if more:
        talk(
            f"Only the first {TABLE_ROWS} rows are shown: "
            "use --format csv, json or parquet for all, or a LIMIT."
        )


def _write_csv(result: QueryResult, file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows(result.rows())


def _write_json(result: QueryResult, file: IO[str]) -> None:
    separator = "[\n"
    for row in result.rows():
        content = dict(zip(result.columns, map(_json_value, row), strict=True))
        file.write(separator + json.dumps(content))
        separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


_WRITERS = {Format.TABLE: _write_table, Format.CSV: _write_csv, Format.JSON: _write_json}


def _write_parquet(result: QueryResult, output: Path | None) -> None:
    if output is not None:
        with _creating(output) as temporary:
            pq.write_table(result.to_arrow(), temporary, compression="zstd")
    elif sys.stdout.isatty():
        raise QueryError("Parquet is not for a terminal: give a file with --output")
    else:
        pq.write_table(result.to_arrow(), sys.stdout.buffer, compression="zstd")


def _refuse_equal_names(columns: Sequence[str]) -> None:
    """Refuse what an object of JSON, or a reader of Parquet, would keep one column of."""
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise QueryError(f"two columns are called {twice[0]}: name one of them otherwise with AS")


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[Path]:
    if path.exists():
        raise QueryError(f"{path} exists: remove it or give --output another name")
    try:
        with replacing(path) as temporary:
            yield temporary
    except QueryError:
        raise
    except OSError as error:
        raise QueryError(f"{path} cannot be written: {error.strerror or error}") from error
    talk(f"Wrote {path}")


def _is_number(value: object) -> bool:
    return value is None or (
        isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)
    )


def _json_value(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and no infinities: they become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
