"""The interactive shell of `fpdiff sql`."""

import contextlib
import sys
from collections.abc import Iterator

import duckdb

from fpdiff.cli.console import data_console, printable, talk
from fpdiff.cli.output import Format, write_result
from fpdiff.store.errors import QueryError
from fpdiff.store.views import VIEWS, query, split

PROMPT = "fpdiff> "
MORE = "   ...> "
HELP = """\
Type an SQL statement and end it with `;`.

  .tables   the tables and their columns
  .help     this text
  .quit     leave (or Ctrl-D)
"""


def run_shell(connection: duckdb.DuckDBPyConnection, form: Format) -> bool:
    """Read statements from stdin until it ends; return whether none failed.

    Errors are printed and the shell goes on.
    """
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # Importing it gives input() its line editing.
        talk(f"Tables: {', '.join(VIEWS)}. Type .help for help.")
    good = True
    for text in _entries():
        if text == ".quit":
            break
        try:
            _execute(connection, text, form)
        except QueryError as error:
            good = False
            talk(f"fpdiff: {error}")
    return good


def _execute(connection: duckdb.DuckDBPyConnection, text: str, form: Format) -> None:
    if text == ".help":
        data_console().print(HELP, end="", markup=False)
    elif text == ".tables":
        for view in VIEWS:
            columns = query(connection, f"SELECT * FROM {view} LIMIT 0").columns
            data_console().print(printable(f"{view}: {', '.join(columns)}"))
    elif text.startswith("."):
        raise QueryError(f"there is no {text.split()[0]}: type .help")
    else:
        for statement in split(text):
            write_result(query(connection, statement), form)


def _entries() -> Iterator[str]:
    """Yield dot commands and texts that end with `;`; what is left at the end counts as well."""
    lines: list[str] = []
    for line in _lines(lines):
        if not lines and line.strip().startswith("."):
            yield line.strip()
            continue
        if not lines and not line.strip():
            continue
        lines.append(line)
        if _complete("\n".join(lines)):
            yield "\n".join(lines)
            lines.clear()
    if lines:
        yield "\n".join(lines)


def _complete(text: str) -> bool:
    # A semicolon inside a string that is still open ends nothing.
    return text.rstrip().endswith(";") and text.count("'") % 2 == 0


def _lines(pending: list[str]) -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    while True:
        try:
            yield input(MORE if pending else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # As in other shells: forget what was typed, go on.
            print()
            pending.clear()
