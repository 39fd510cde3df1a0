"""`fpdiff show`: what a run is and how it ended."""

import dataclasses
import json
import shlex
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fpdiff.cli.console import data_console, print_data, printable
from fpdiff.fingerprint.bisect.wording import numbers_text
from fpdiff.store.run import Run
from fpdiff.store.summary import RankSummary, RunSummary, summarize

_FIRST = ("torch", "python", "device", "thread", "determin", "cuda", "cudnn", "blas", "host")
"""Parts of the names of the environment's entries that come first, and without --json alone."""

_OWN = ("pid", "local_rank")
"""Entries that are each rank's own by nature."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run, or s3:// address.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run holds and how it ended."""
    summary = summarize(Run.open(run))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(summary), indent=2))
    else:
        render(summary, data_console())


def render(summary: RunSummary, console: Console) -> None:
    """Print a summary."""
    console.print(Text.assemble(("run ", "bold"), printable(summary.path)), soft_wrap=True)
    print_data(console, _section(_head(summary)))
    for title, rows in (
        ("environment", _environment(summary)),
        ("differs between ranks", _differences(summary)),
        ("blind spots", [(f"{count:,}", reason) for reason, count in summary.blind_spots.items()]),
    ):
        if rows:
            print_data(console, Text(""), Text(title, "bold"), _section(rows))
    if not summary.blind_spots:
        print_data(console, Text(""), Text("no blind spots", "bold"))


def collapse(ranks: Iterable[int]) -> str:
    """Return ranks as a user writes them: `0-3, 6`."""
    return numbers_text(sorted(ranks), most=None)


def size_text(size_bytes: float) -> str:
    """Return a size with a decimal unit: `4.2 MB`."""
    for unit in _UNITS:
        if size_bytes < 1000 or unit == _UNITS[-1]:
            break
        size_bytes /= 1000
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def _section(rows: list[tuple[str, str]]) -> Padding:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for key, value in rows:
        grid.add_row(printable(key), printable(value))
    return Padding(grid, (0, 0, 0, 2))


def _head(summary: RunSummary) -> list[tuple[str, str]]:
    size = size_text(summary.size_bytes)
    if summary.num_events:
        size += f", {summary.size_bytes / summary.num_events:.1f} bytes per event"
    rows = [
        ("command", shlex.join(summary.command) or "unknown"),
        ("created", summary.created or "unknown"),
        ("ended", _ending(summary)),
        ("level", summary.level or "unknown"),
        ("digest", summary.digest or "unknown"),
        *_settings(summary),
        ("ranks", collapse(r.rank for r in summary.ranks) or "none"),
        *_states(summary.ranks),
        *(("restarted", f"see {path}, a run of its own") for path in summary.attempts),
        *_compact(summary),
        ("steps", _steps(summary)),
        ("events", f"{summary.num_events:,}"),
        ("size", size),
    ]
    return rows


def _settings(summary: RunSummary) -> list[tuple[str, str]]:
    """Return the options that narrow or widen what was recorded, as they were given."""
    given = {key: value for key, value in summary.settings.items() if value}
    return [
        (key.replace("_", "-"), _value(value))
        for key, value in sorted(given.items())
        if key not in ("out", "level", "digest")
    ]


def _ending(summary: RunSummary) -> str:
    if summary.ended is None:
        return "not yet, or killed"
    code = "unknown" if summary.exit_code is None else summary.exit_code
    return f"{summary.ended}, exit code {code}"


def _states(ranks: list[RankSummary]) -> list[tuple[str, str]]:
    rows = []
    for state in ("finished", "open"):
        if members := [r.rank for r in ranks if r.state == state]:
            note = " (recording, or killed)" if state == "open" else ""
            rows.append((f"  {state}", collapse(members) + note))
    reasons: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.state == "stopped":
            reasons.setdefault(rank.stopped or "", []).append(rank.rank)
    rows += [("  stopped", f"{collapse(who)}: {why}") for why, who in reasons.items()]
    return rows


def _compact(summary: RunSummary) -> list[tuple[str, str]]:
    if not summary.compact:
        return []
    others = {r.rank for r in summary.ranks} - set(summary.compact)
    rest = f"; rank {collapse(others)} not: run `fpdiff compact` again" if others else ""
    return [("compact", f"rank {collapse(summary.compact)}{rest}")]


def _steps(summary: RunSummary) -> str:
    if summary.first_step is None:
        return "none closed"
    text = f"{summary.first_step}-{summary.last_step}, {summary.num_steps:,} recorded"
    short = [r.rank for r in summary.ranks if r.num_steps < summary.num_steps]
    return f"{text}; fewer on rank {collapse(short)}" if short else text


def _environment(summary: RunSummary) -> list[tuple[str, str]]:
    def place(key: str) -> int:
        return next((i for i, part in enumerate(_FIRST) if part in key.lower()), len(_FIRST))

    known = sorted((key for key in summary.environment if place(key) < len(_FIRST)), key=place)
    rows = [(key.removeprefix("decides."), _value(summary.environment[key])) for key in known]
    if rest := len(summary.environment) - len(known):
        rows.append(("", f"and {rest} more: see --json"))
    return rows


def _differences(summary: RunSummary) -> list[tuple[str, str]]:
    return [
        (
            key.removeprefix("decides."),
            "; ".join(f"{value} on rank {collapse(ranks)}" for value, ranks in values.items()),
        )
        for key, values in summary.environment_differences.items()
        if key not in _OWN
    ]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
