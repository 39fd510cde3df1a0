"""What recording costs: one training step with no recorder, at rung step, at rung layer.

    python bench/overhead.py [--quick]

The conditions take turns in one process, on one model, a block of steps each, in an order that
rotates, so that a machine that slows down or warms up slows all of them. A block's cost is that of
its steps after the second, and of closing the run: every flush is in it. What a run costs once
(imports, the searches for optimizers, creating files) is in the first two steps and given apart.
Each ratio is to the block without recorder of the same round.
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

import torch
from gpt17 import THREADS, make
from rich.console import Console
from rich.table import Table

import fpdiff

NO_RECORDER = "no recorder"
CONDITIONS = (NO_RECORDER, "step", "layer")
ONCE = 2
"""Steps in which a run pays what it pays once."""


@dataclass
class Timings:
    """What the timed blocks of one condition took and left on disk."""

    first: list[float] = field(default_factory=list)  # seconds of a block's first two steps
    steady: list[float] = field(default_factory=list)  # seconds of a later step, closing included
    run_bytes: int = 0
    events: int = 0
    steps: int = 0


def recorder(condition: str, run: Path) -> AbstractContextManager[None]:
    """Return what a block of this condition runs in."""
    return nullcontext() if condition == NO_RECORDER else fpdiff.record(run, level=condition)


def time_block(condition: str, step: Callable[[], None], steps: int, timings: Timings) -> None:
    """Run one block of steps in a fresh run, and add to the condition's timings."""
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as folder:
        run = Path(folder) / "run"
        begin = time.perf_counter()
        with recorder(condition, run):
            for _ in range(ONCE):
                step()
            after_first = time.perf_counter()
            for _ in range(steps - ONCE):
                step()
        end = time.perf_counter()
        timings.first.append(after_first - begin)
        timings.steady.append((end - after_first) / (steps - ONCE))
        timings.steps += steps
        if condition != NO_RECORDER:
            record = fpdiff.open_run(run).ranks[0]
            timings.run_bytes += record.size_bytes
            timings.events += record.num_events


def measure(rounds: int, steps: int) -> dict[str, Timings]:
    """Return the timings of each condition over `rounds` rounds of blocks of `steps` steps."""
    torch.set_num_threads(THREADS)
    step = make(seed=0)
    for condition in CONDITIONS:
        # Untimed: imports, the optimizer's state and first allocations would count once only.
        time_block(condition, step, 3, Timings())
    timings = {condition: Timings() for condition in CONDITIONS}
    for turn in range(rounds):
        for place in range(len(CONDITIONS)):
            condition = CONDITIONS[(turn + place) % len(CONDITIONS)]
            time_block(condition, step, steps, timings[condition])
    return timings


def table_of(timings: dict[str, Timings], steps: int) -> Table:
    """Return the timings as a table."""
    table = Table("condition", "s a step", "ratio: min", "median", "max", "once, s")
    table.add_column("events a step")
    table.add_column("bytes an event")
    baseline = timings[NO_RECORDER]
    for condition, each in timings.items():
        ratios = [ours / theirs for ours, theirs in zip(each.steady, baseline.steady, strict=True)]
        once = statistics.median(each.first) - ONCE * statistics.median(each.steady)
        recorded = each.events > 0
        table.add_row(
            condition,
            f"{statistics.median(each.steady):.4f}",
            *(f"{f(ratios):.3f}" for f in (min, statistics.median, max)),
            f"{once:.3f}",
            f"{each.events / each.steps:.0f}" if recorded else "",
            f"{each.run_bytes / each.events:.1f}" if recorded else "",
        )
    return table


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure what recording costs.")
    parser.add_argument("--rounds", type=int, default=12, help="blocks of each condition")
    parser.add_argument("--steps", type=int, default=8, help="steps in a block")
    parser.add_argument("--quick", action="store_true", help="two rounds of three steps")
    args = parser.parse_args()
    rounds, steps = (2, 3) if args.quick else (args.rounds, args.steps)
    table = table_of(measure(rounds, steps), steps)
    table.title = f"{rounds} rounds of {steps} steps, {THREADS} threads, torch {torch.__version__}"
    # In a pipe rich assumes 80 columns, which would fold the table.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
