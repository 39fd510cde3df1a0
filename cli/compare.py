"""`fpdiff compare`: say where two runs part ways."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from fpdiff.cli.console import data_console, progress_bar
from fpdiff.cli.report import render
from fpdiff.fingerprint.bisect.compare import compare_runs
from fpdiff.fingerprint.bisect.parallel import Engine, in_parallel
from fpdiff.fingerprint.bisect.raytasks import ray_engine
from fpdiff.fingerprint.bisect.verdict import Verdict
from fpdiff.fingerprint.record.settings import Ranges, parse_ranks, parse_steps
from fpdiff.store.errors import CompareError
from fpdiff.store.run import Run
from fpdiff.store.schema import MAX_RANKS

_ENGINES = ("threads", "ray")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Run that is taken as the reference.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other run.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole verdict as JSON.")
    ] = False,
    steps: Annotated[str, typer.Option(help="Compare only these, such as 10:20,400.")] = "",
    ranks: Annotated[str, typer.Option(help="Compare only these, such as 0,3-5.")] = "",
    align: Annotated[
        str,
        typer.Option(
            help="How steps pair up: number; or auto, which finds the step of one run that the"
            " other, a resumed one, begins with."
        ),
    ] = "number",
    engine: Annotated[
        str, typer.Option(help="What works on many ranks at once: threads or ray.")
    ] = "threads",
    address: Annotated[
        str, typer.Option(help="Of a Ray cluster; without it, one is started here.")
    ] = "",
    count: Annotated[
        bool,
        typer.Option("--count", help="Read every step that differs, and count the events that do."),
    ] = False,
) -> None:
    """Say where two runs part ways, and why.

    Exits with 0 if they are identical, 1 if they diverged, 2 if that cannot be said.
    """
    wanted = _numbers(parse_ranks(ranks), ranks)
    try:
        with _engine(engine, address) as work, progress_bar("comparing ranks") as progress:
            verdict = compare_runs(
                Run.open(a),
                Run.open(b),
                steps=parse_steps(steps),
                ranks=wanted,
                align=align,
                count=count,
                engine=work,
                progress=progress,
            )
    except CompareError as error:
        if not as_json:
            raise
        verdict = Verdict(verdict="incomparable", summary=str(error), a=a, b=b)
    if as_json:
        typer.echo(json.dumps(verdict.to_dict(), indent=1, allow_nan=False))
    else:
        render(verdict, data_console())
    raise typer.Exit(verdict.exit_code)


def _numbers(windows: Ranges, text: str) -> tuple[int, ...]:
    if any(end > MAX_RANKS for _, end in windows):
        raise CompareError(f"--ranks {text!r} names ranks that no run has: write it like 0,3-5")
    return tuple(rank for first, end in windows for rank in range(first, end))


@contextmanager
def _engine(name: str, address: str) -> Iterator[Engine]:
    if name not in _ENGINES:
        raise CompareError(f"--engine {name} is not known: give {' or '.join(_ENGINES)}")
    if address and name != "ray":
        raise CompareError("--address is of a Ray cluster: give --engine ray too")
    if name == "threads":
        yield in_parallel
        return
    with ray_engine(address) as engine:
        yield engine
