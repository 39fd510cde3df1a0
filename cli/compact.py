"""`fpdiff compact`: consolidate the small files of a run of very many ranks."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from fpdiff.cli.console import data_console, printable, progress_bar
from fpdiff.cli.show import collapse, size_text
from fpdiff.store.compacting import compact_run


def compact(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the step rows and sites of all ranks into a few large files.

    Comparing runs of hundreds of ranks or more is faster then. The ranks' own files stay as they
    are; if they change, they are read themselves, until the run is compacted again.
    """
    with progress_bar("compacting ranks") as progress:
        done = compact_run(run, progress=progress)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(done), indent=1))
        return
    what = "compacted" if done.is_new else "compact already"
    text = f"{what}: {done.files:,} files of rank {collapse(done.ranks)}"
    text += f" in {Path(run) / 'compact'}, {size_text(done.size_bytes)}"
    if done.left_out:
        text += f"; rank {collapse(done.left_out)} has not ended and is read as it is"
    data_console().print(printable(text), soft_wrap=True)
