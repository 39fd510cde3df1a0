"""The entry point: one app, and one place where errors become a sentence and an exit code.

Exit codes: 0 done (compare: identical; certify: sound; verify: valid), 1 only from these three, 2
any error, 130 interrupted, 141 the reader of a pipe went away.
"""

import errno
import importlib.metadata
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from fpdiff.cli.certify import certify
from fpdiff.cli.compact import compact
from fpdiff.cli.compare import compare
from fpdiff.cli.console import drop, talk
from fpdiff.cli.demo import demo
from fpdiff.cli.record import record
from fpdiff.cli.show import show
from fpdiff.cli.sql import sql
from fpdiff.cli.upload import upload
from fpdiff.cli.verify import verify
from fpdiff.store.errors import FpdiffError

ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_state = {"debug": False}

app = typer.Typer(
    name="fpdiff",
    help="Find where two training runs that should be identical begin to differ.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("record")(record)
app.command("compare")(compare)
app.command("compact")(compact)
app.command("upload")(upload)
app.command("certify")(certify)
app.command("sql")(sql)
app.command("show")(show)
app.command("demo")(demo)
app.command("verify")(verify)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fpdiff {_version()}")
        raise typer.Exit


def _version() -> str:
    try:
        return importlib.metadata.version("fpdiff")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with every error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Find where two training runs that should be identical begin to differ."""
    # run() reads this after an exception, when typer's context is gone.
    _state["debug"] = debug
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ERROR)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    Args:
        arguments: instead of the process's own.
    """
    _mend_streams()
    sys.exit(run(arguments))


def _mend_streams() -> None:
    """Let the streams take every text, also where they are closed or know few letters."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # Stays.
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _state["debug"] = False
    try:
        code = app(arguments, prog_name="fpdiff", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # typer itself turns a broken pipe into exit code 1, which would read as diverged. Nothing
        # else exits here: outside standalone mode a command's own code is returned.
        drop(sys.stdout)
        return BROKEN_PIPE
    except FpdiffError as error:
        return _fail(str(error))
    except OSError as error:
        if _is_nowhere():
            return _fail("the working directory has been removed: change to another one")
        if error.errno != errno.ENOSPC:
            return _fail_unexpected(error)
        drop(sys.stdout)  # What is left to write would fail again.
        return _fail(f"{error.strerror}: make room for the output and below TMPDIR")
    except MemoryError:
        return _fail("there is not enough memory: free some, or ask for fewer ranks or steps")
    except Exception as error:  # noqa: BLE001  # Python's own status 1 would read as diverged.
        if hasattr(error, "format_message"):  # A usage error of typer, whose class is private.
            return _fail_usage(error)
        return _fail_unexpected(error)


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _fail_unexpected(error: Exception) -> int:
    return _fail(f"internal error: {type(error).__name__}: {_one_line(error)}")


def _fail(sentence: str) -> int:
    if _state["debug"]:
        traceback.print_exc()
    talk(f"fpdiff: {sentence}")
    return ERROR


def _fail_usage(error: Exception) -> int:
    message = str(error.format_message()).strip().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fpdiff"
    return _fail(f"{message}; see `{command} --help`")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
