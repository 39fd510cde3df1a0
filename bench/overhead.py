"""What recording costs: one training step with no recorder, and at each rung.

    python bench/overhead.py [--quick] [--small] [--debug-mode]

`--small` takes a GPT of half a million parameters, where Python is all. `--debug-mode` adds
PyTorch's own DebugMode with torch.hash_tensor, over outputs only and over inputs too.

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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gpt17 import THREADS, make, make_small
from rich.console import Console
from rich.table import Table
from torch.utils._debug_mode import DebugMode

import fpdiff

NO_RECORDER = "no recorder"
RUNGS = ("step", "layer", "op")
DEBUG_MODES = ("DebugMode, outputs", "DebugMode, inputs too")
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
    if condition in RUNGS:
        return fpdiff.record(run, level=condition)
    if condition in DEBUG_MODES:
        return debug_mode(hash_inputs=condition == DEBUG_MODES[1])
    return nullcontext()


@contextmanager
def debug_mode(*, hash_inputs: bool) -> Iterator[None]:
    """Run a block under PyTorch's DebugMode, told to hash tensors."""
    with DebugMode(), DebugMode.log_tensor_hashes("hash_tensor", hash_inputs=hash_inputs):
        yield


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
        if condition in RUNGS:
            record = fpdiff.open_run(run).ranks[0]
            timings.run_bytes += record.size_bytes
            timings.events += record.num_events


def measure(
    step: Callable[[], None], conditions: tuple[str, ...], rounds: int, steps: int
) -> dict[str, Timings]:
    """Return the timings of each condition over `rounds` rounds of blocks of `steps` steps."""
    torch.set_num_threads(THREADS)
    for condition in conditions:
        # Untimed: imports, the optimizer's state and first allocations would count once only.
        time_block(condition, step, 3, Timings())
    timings = {condition: Timings() for condition in conditions}
    for turn in range(rounds):
        for place in range(len(conditions)):
            condition = conditions[(turn + place) % len(conditions)]
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
    parser.add_argument("--small", action="store_true", help="half a million parameters")
    parser.add_argument("--debug-mode", action="store_true", help="PyTorch's DebugMode as well")
    args = parser.parse_args()
    rounds, steps = (2, 3) if args.quick else (args.rounds, args.steps)
    conditions = (NO_RECORDER, *RUNGS, *(DEBUG_MODES if args.debug_mode else ()))
    step = (make_small if args.small else make)(seed=0)
    table = table_of(measure(step, conditions, rounds, steps), steps)
    size = "0.5 M" if args.small else "17 M"
    table.title = (
        f"{size} parameters, {rounds} rounds of {steps} steps, {THREADS} threads,"
        f" torch {torch.__version__}"
    )
    # In a pipe rich assumes 80 columns, which would fold the table.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
