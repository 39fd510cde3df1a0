"""`fpdiff certify`: say what the record of one run is worth."""

import json
from collections.abc import Iterable
from typing import Annotated

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fpdiff.cli.console import data_console, print_data, printable, progress_bar
from fpdiff.fingerprint.bisect.wording import counted
from fpdiff.fingerprint.certify.certificate import Certificate
from fpdiff.store.run import Run

MAX_FINDINGS = 12
_STYLE = {"sound": "green", "unsound": "bold red", "nothing": "dim"}
_RESULT = {"nothing": "not checked"}


def certify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run, or s3:// address.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole certificate as JSON.")
    ] = False,
) -> None:
    """Say what the record of one run is worth.

    Checks that the record is whole, that every rank is there, and that ranks, collectives and
    recomputations agree with one another. Exits with 0 if it is sound, 1 if something was found, 2
    if it cannot be read.
    """
    # It digests as the recorder does, and so imports torch, which takes a second.
    from fpdiff.fingerprint.certify.certify import certify_run

    with progress_bar("certifying ranks") as progress:
        certificate = certify_run(Run.open(run, compact=False), progress=progress)
    if as_json:
        typer.echo(json.dumps(certificate.to_dict(), indent=1))
    else:
        render(certificate, data_console())
    raise typer.Exit(certificate.exit_code)


def render(certificate: Certificate, console: Console) -> None:
    """Print a certificate."""
    content: list[RenderableType] = [_headline(certificate), "", _checks(certificate)]
    for title, rows in (
        ("findings", _findings(certificate)),
        ("blind spots", ((f"{n:,}", reason) for reason, n in certificate.blind_spots.items())),
        ("notes", (("", note) for note in certificate.notes)),
    ):
        if found := list(rows):
            content += ["", Text(title, "bold"), _rows(found)]
    if not certificate.blind_spots:
        content += ["", Text("no blind spots", "bold")]
    print_data(console, *content)


def _headline(certificate: Certificate) -> Text:
    style = "bold green" if certificate.verdict == "sound" else "bold red"
    head = Text(certificate.verdict, style)
    return head + Text(": ") + printable(certificate.summary)


def _checks(certificate: Certificate) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("check", "result"):
        table.add_column(title, no_wrap=True)
    table.add_column("rests on", overflow="fold")
    for check in certificate.checks:
        result = Text(_RESULT.get(check.result, check.result), _STYLE[check.result])
        table.add_row(check.name, result, printable(check.rests_on))
    return table


def _findings(certificate: Certificate) -> Iterable[tuple[str, str]]:
    before = None
    for finding in certificate.findings[:MAX_FINDINGS]:
        yield "" if finding.check == before else finding.check, finding.text
        before = finding.check
    if (rest := certificate.num_findings - MAX_FINDINGS) > 0:
        more = counted(rest, "more finding")
        yield "", f"and {more}: see --json"


def _rows(rows: list[tuple[str, str]]) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    if any(label for label, _ in rows):
        grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in rows:
        cells = (printable(label), printable(value))
        grid.add_row(*cells[-len(grid.columns) :])
    return Padding(grid, (0, 0, 0, 2))
