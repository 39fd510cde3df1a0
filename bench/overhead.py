"""What recording costs: one training step with no recorder, at the step rung, at the layer rung.

    python bench/overhead.py [--quick]

The conditions take turns in one process, on one model, a block of steps each, so that a machine
that slows down or warms up slows all of them. A block's time includes the opening of the run and
the writing of everything recorded, and its ratio is to the block without recorder of its round.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import torch
from gpt17 import THREADS, make
from rich.console import Console
from rich.table import Table

import fpdiff

NO_RECORDER = "no recorder"
CONDITIONS = (NO_RECORDER, "step", "layer")


@dataclass
class Timings:
    """What the timed blocks of one condition took and left on disk."""

    seconds: list[float] = field(default_factory=list)  # of one step, a mean over a block
    run_bytes: int = 0
    events: int = 0


def recorder(condition: str, run: Path) -> AbstractContextManager[None]:
    """Return what a block of this condition runs in."""
    return nullcontext() if condition == NO_RECORDER else fpdiff.record(run, level=condition)


def time_block(condition: str, step: Callable[[], None], steps: int, timings: Timings) -> None:
    """Run one block of steps in a fresh run, and add to the condition's timings."""
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as folder:
        run = Path(folder) / "run"
        start = time.perf_counter()
        with recorder(condition, run):
            for _ in range(steps):
                step()
        timings.seconds.append((time.perf_counter() - start) / steps)
        timings.run_bytes += sum(f.stat().st_size for f in run.rglob("*") if f.is_file())
        timings.events += sum(pq.read_metadata(f).num_rows for f in run.glob("events/*/*.parquet"))


def measure(rounds: int, steps: int) -> dict[str, Timings]:
    """Return the timings of each condition over `rounds` rounds of blocks of `steps` steps."""
    torch.set_num_threads(THREADS)
    step = make(seed=0)
    for condition in CONDITIONS:
        # Untimed: imports, the optimizer's state and first allocations would count once only.
        time_block(condition, step, 1, Timings())
    timings = {condition: Timings() for condition in CONDITIONS}
    for _ in range(rounds):
        for condition in CONDITIONS:
            time_block(condition, step, steps, timings[condition])
    return timings


def table_of(timings: dict[str, Timings], steps: int) -> Table:
    """Return the timings as a table."""
    table = Table("condition", "s a step", "ratio: min", "median", "max", "events a step")
    table.add_column("bytes an event")
    baseline = timings[NO_RECORDER].seconds
    for condition, each in timings.items():
        ratios = [ours / theirs for ours, theirs in zip(each.seconds, baseline, strict=True)]
        recorded = each.events > 0
        table.add_row(
            condition,
            f"{statistics.median(each.seconds):.3f}",
            *(f"{f(ratios):.3f}" for f in (min, statistics.median, max)),
            f"{each.events / (len(each.seconds) * steps):.0f}" if recorded else "",
            f"{each.run_bytes / each.events:.1f}" if recorded else "",
        )
    return table


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure what recording costs.")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each condition")
    parser.add_argument("--steps", type=int, default=8, help="steps in a block")
    parser.add_argument("--quick", action="store_true", help="two rounds of two steps")
    args = parser.parse_args()
    rounds, steps = (2, 2) if args.quick else (args.rounds, args.steps)
    table = table_of(measure(rounds, steps), steps)
    table.title = f"{rounds} rounds of {steps} steps, {THREADS} threads, torch {torch.__version__}"
    # In a pipe rich assumes 80 columns, which would fold the table.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
