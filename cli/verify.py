"""`fpdiff verify`: say whether recording changes what a command computes."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fpdiff.cli.console import data_console, print_data, printable, talk
from fpdiff.cli.keep import empty_folder
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.verify.check import Verification
from fpdiff.fingerprint.verify.check import verify as run_both
from fpdiff.store.errors import RecordError

_STYLE = {"valid": "bold green", "invalid": "bold red", "unknown": "bold yellow"}


def verify(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Program and arguments, behind --."),
    ] = None,
    level: Annotated[str, typer.Option(help="Rung: step, layer, op or kernel.")] = "layer",
    stats: Annotated[
        bool, typer.Option("--stats", help="Record with --stats, as `fpdiff record` does.")
    ] = False,
    digest: Annotated[str, typer.Option(help="Record with this digest.")] = "xxh3-128",
    rehash: Annotated[bool, typer.Option("--rehash", help="Record with --rehash.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Leave the record in this new or empty folder."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON; what COMMAND prints goes to standard error."),
    ] = False,
) -> None:
    """Say whether recording changes what a command computes.

    Runs it without and with the recorder, and compares its parameters bit by bit. Exits with 0 if
    they are the same after every optimizer step, 1 if recording changed them, 2 if that cannot be
    said: the command fails, or its own repeats differ.
    """
    if not command:
        raise RecordError(
            "there is no command to verify: write it behind --, as in"
            " fpdiff verify -- python train.py"
        )
    stdout = sys.stderr if as_json else None  # Where the JSON goes nothing else does.
    settings = Settings(out="", level=level, stats=stats, digest=digest, rehash=rehash)
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="fpdiff-verify-") as folder:
            found = run_both(settings, command, Path(folder), _say, stdout)
    else:
        found = run_both(settings, command, empty_folder(keep), _say, stdout)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _render(found)
    raise typer.Exit(found.exit_code)


def _say(what: str) -> None:
    talk(f"fpdiff: running the command {what}")


def _render(found: Verification) -> None:
    headline = Text(found.verdict, style=_STYLE[found.verdict]) + Text(": ")
    print_data(data_console(), headline + printable(found.summary))
