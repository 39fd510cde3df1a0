"""Consoles: stdout is data, stderr is talk."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console, RenderableType
from rich.progress import Progress as ProgressBar
from rich.text import Text

from fpdiff.store.progress import Progress

PIPED_WIDTH = 80
_UNBOUNDED_WIDTH = 1 << 16
# What could drive a terminal; a module's name, say, comes from the disk and is not trusted.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def data_console(*, wide: bool = False) -> Console:
    """Return the console for data. rich honours NO_COLOR and drops colours in a pipe.

    Args:
        wide: in a pipe, take as much width as the data needs rather than 80 columns.
    """
    piped_width = _UNBOUNDED_WIDTH if wide else PIPED_WIDTH
    width = None if sys.stdout.isatty() else piped_width
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def print_data(console: Console, *content: RenderableType) -> None:
    """Print to a data console; in a pipe without the blanks that fill a table's lines."""
    if console.is_terminal:
        console.print(*content, sep="\n")
        return
    with console.capture() as capture:
        console.print(*content, sep="\n")
    console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def talk(sentence: str) -> None:
    """Print a sentence for the user on stderr; if that takes nothing, it is not said."""
    try:
        print(printable(sentence).plain, file=sys.stderr, flush=True)
    except OSError:  # A remark decides no exit code, be it that its reader went away.
        drop(sys.stderr)


def drop(stream: IO[str]) -> None:
    """Keep the interpreter from failing when it flushes a stream at exit that takes nothing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


def printable(value: object) -> Text:
    """Return a value as text that is neither markup nor control codes."""
    return Text(_CONTROL.sub(lambda match: repr(match[0])[1:-1], str(value)))


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """Show progress on stderr while the block runs; yields None when that is not a terminal.

    The function that is yielded takes (done, total). Work that is done in a second shows nothing.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with ProgressBar(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(what, visible=False)
        begin = time.monotonic()

        def update(done: int, total: int) -> None:
            visible = time.monotonic() - begin > 1
            progress.update(task, completed=done, total=total, visible=visible)

        yield update
