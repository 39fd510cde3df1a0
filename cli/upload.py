"""`fpdiff upload`: copy a run to object storage."""

import shlex
from typing import Annotated

import typer

from fpdiff.cli.console import progress_bar, talk
from fpdiff.store.upload import upload_run


def upload(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run.")],
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Where to, as s3://BUCKET/FOLDER.")
    ],
) -> None:
    """Copy a run to object storage, or what is not there yet.

    Goes on where an upload was interrupted, `fpdiff record --out s3://...` included.
    """
    with progress_bar("uploading files") as progress:
        there = upload_run(run, address, progress=progress)
    talk(f"fpdiff: uploaded to {there}; next: fpdiff compare {shlex.quote(there)} OTHER_RUN")
