"""`fpdiff sql`: ask one or several runs with SQL."""

from pathlib import Path
from typing import Annotated

import typer

from fpdiff.cli.output import Format, write_result
from fpdiff.cli.runs import open_runs
from fpdiff.cli.shell import run_shell
from fpdiff.store.errors import QueryError
from fpdiff.store.views import connect, query


def sql(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [QUERY]", help="Folders or s3:// addresses of runs, then a statement."
        ),
    ],
    form: Annotated[
        Format, typer.Option("--format", help="How to write the result.")
    ] = Format.TABLE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Read all files first to check their checksums."),
    ] = True,
) -> None:
    """Query runs with SQL.

    Tables: runs, ranks, steps, sites, events, metrics, inputs.

    Column `run` holds the folder's name. Without QUERY, statements are read from the terminal or
    from stdin.
    """
    paths, statement = split_arguments(arguments)
    if not paths:
        raise QueryError("no run given: name the folder of a run before the statement")
    connection = connect(open_runs(paths), verify=verify)
    if statement is not None:
        write_result(query(connection, statement), form, output)
    elif output is not None:
        raise QueryError("--output needs a statement: give it after the runs")
    elif not run_shell(connection, form):
        raise typer.Exit(2)


def split_arguments(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the runs' folders and the statement, if the last argument is one.

    It is one if there is no such folder and it has white space in it.
    """
    *head, last = arguments
    if len(last.split()) > 1 and not _exists(last):
        return head, last
    return arguments, None


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # A long statement is no possible name of a file.
        return False
