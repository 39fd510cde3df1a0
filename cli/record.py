"""`fpdiff record`: run a command and record it."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fpdiff.cli.console import talk
from fpdiff.fingerprint.record.job import launcher, remote
from fpdiff.fingerprint.record.settings import Settings, parse_ranks, parse_steps
from fpdiff.store.bucket import is_url, refuse_other_scheme
from fpdiff.store.errors import RecordError


def record(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Program and arguments, behind --."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder of the run, or s3://BUCKET/FOLDER; it must not exist.",
        ),
    ] = None,
    level: Annotated[str, typer.Option(help="Rung: step, layer, op or kernel.")] = "layer",
    steps: Annotated[str, typer.Option(help="Only these steps, such as 10:20,400.")] = "",
    modules: Annotated[str, typer.Option(help="Only modules whose path matches.")] = "",
    ranks: Annotated[str, typer.Option(help="Only these ranks, such as 0,3-5.")] = "",
    stats: Annotated[
        bool, typer.Option("--stats", help="Also record l2, absmax and nonfinite count.")
    ] = False,
    digest: Annotated[
        str, typer.Option(help="Digest of tensors: xxh3-128, or mix128 which devices compute.")
    ] = "xxh3-128",
    rehash: Annotated[
        bool,
        typer.Option("--rehash", help="Digest arguments again to notice writes nobody announced."),
    ] = False,
    collectives: Annotated[
        bool, typer.Option(help="At rung layer: what collectives were given and left.")
    ] = True,
    first_step: Annotated[
        int, typer.Option("--first-step", min=0, help="Number of the first step (a resumed run).")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run.")] = False,
) -> None:
    """Run a command and record what its tensors were.

    The command may be python, torchrun, or a script that calls them. It is not changed: its exit
    code, output and signals pass through.
    """
    if not command:
        raise RecordError(
            "there is no command to record: write it behind --, as in"
            " fpdiff record --out runs/a -- python train.py"
        )
    if not out:
        raise RecordError("say where to record to: --out DIR")
    refuse_other_scheme(out)
    settings = Settings(
        out=out if is_url(out) else str(Path(out).absolute()),
        level=level,
        steps=parse_steps(steps),
        modules=modules,
        ranks=parse_ranks(ranks),
        stats=stats,
        digest=digest,
        rehash=rehash,
        collectives=collectives,
        first_step=first_step,
    )
    if is_url(out):
        outcome = remote.run(settings, command, force=force)
        exit_code, has_recorded = outcome.exit_code, outcome.recorded
    else:
        exit_code = launcher.run(settings, command, force=force)
        # Not so after a command that failed before it recorded.
        has_recorded = (Path(out) / "run.json").exists()
    if has_recorded:
        talk(f"fpdiff: recorded to {out}; next: fpdiff compare {shlex.quote(out)} OTHER_RUN")
    raise typer.Exit(exit_code)
