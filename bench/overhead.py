"""What recording costs: one training step with no recorder, at each rung, and with other tools.

    python bench/overhead.py [--size 17M] [--quick] [--debug-mode] [--msprobe]

`--debug-mode` adds PyTorch's own DebugMode with torch.hash_tensor, over outputs only and over
inputs too; `--msprobe` adds MindStudio's msprobe, see msprobe_cost.py.

The conditions take turns in one process, on one model, a block of steps each, in an order that
rotates; DebugMode, which takes longer than all others together, in every second round. Each block
stands beside one with no recorder, before it or behind it in turn, and its ratio is to that one, so
that a machine that slows down or warms up slows both. A block's cost is that of the median of its
steps after the second, each with its flush, and a step's share of closing the run: a step that the
machine interrupts counts no more than another. What a run costs once (imports, the searches for
optimizers, creating files) is in the first two steps and given apart. After each block of a rung,
as many bytes as it has to digest in a step are digested, and nothing else is done: see digested.py.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msprobe_cost
import torch
from conditions import DEBUG_MODES, NO_OP, NO_RECORDER, RUNGS, OpCounter, observer
from digested import Limit, counting
from gpt import SIZES, THREADS, build, trainer
from tables import Table, deliver

import fpdiff

ONCE = 2
"""Steps in which a run pays what it pays once."""
SHORT = ONCE + 2
"""Steps in a block of DebugMode, and the least that a block may have."""
COUNTED = 2
"""Steps after the first ones in which bytes are counted."""
DEFAULTS = {"0.5M": (6, ONCE + 100), "17M": (8, 8), "67M": (5, 5)}
"""Rounds, and steps in a block. In the smallest model the end of a run counts as a segment's."""


@dataclass(kw_only=True)
class Measured:
    """One condition: lists hold a number for each block, the others are of one step.

    Attributes:
        size: of the model.
        condition: what it was trained under.
        steps: in a block.
        threads: of the arithmetic.
        bare: seconds of a step without recorder in the block beside it.
        seconds: of a step.
        first: seconds of a block's first two steps.
        limit: seconds for digesting the same bytes once.
        once_bytes: digested of memory that held what it had not held before.
        again_bytes: digested of memory that had not changed since it was digested.
        events: recorded.
        disk_bytes: of the record.
        ops: that pass through the dispatcher.
    """

    size: str
    condition: str
    steps: int
    threads: int = THREADS
    bare: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    once_bytes: float = 0
    again_bytes: float = 0
    events: float = 0
    disk_bytes: float = 0
    ops: float = 0

    @property
    def ratios(self) -> list[float]:
        """To no recorder, by block."""
        return [ours / bare for ours, bare in zip(self.seconds, self.bare, strict=True)]

    @property
    def limit_ratios(self) -> list[float]:
        """What a step would take if the bytes were digested once and nothing else done."""
        return [1 + limit / bare for limit, bare in zip(self.limit, self.bare, strict=True)]

    @property
    def multiples(self) -> list[float]:
        """What recording adds, as a multiple of the limit, by block."""
        rounds = zip(self.seconds, self.bare, self.limit, strict=True)
        return [(ours - bare) / limit for ours, bare, limit in rounds]

    def added(self, base: Sequence[float]) -> float:
        """Return the seconds that a step takes beyond those of the same rounds."""
        return statistics.median(a - b for a, b in zip(self.seconds, base, strict=True))


def rehearse(step: Callable[[], None], found: Measured) -> None:
    """Run a block untimed, for imports and first allocations, and count what a step does in it."""
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as folder, counting() as digested:
        run = Path(folder) / "run"
        counter = OpCounter()  # type: ignore[no-untyped-call]  # Torch's.
        with counter if found.condition == NO_OP else observer(found.condition, run):
            for _ in range(ONCE):
                step()
            before = (digested.once_bytes, digested.again_bytes, counter.ops)
            for _ in range(COUNTED):
                step()
            after = (digested.once_bytes, digested.again_bytes, counter.ops)
        found.once_bytes, found.again_bytes, found.ops = (
            (b - a) / COUNTED for a, b in zip(before, after, strict=True)
        )
        if found.condition in RUNGS:
            record = fpdiff.open_run(run).ranks[0]
            found.events = record.events(ONCE).num_rows


def time_block(step: Callable[[], None], found: Measured) -> None:
    """Run one block of steps in a fresh run, and add what it took and left on disk."""
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as folder:
        run = Path(folder) / "run"
        begin = time.perf_counter()
        with observer(found.condition, run):
            for _ in range(ONCE):
                step()
            ends = [time.perf_counter()]
            for _ in range(found.steps - ONCE):
                step()
                ends.append(time.perf_counter())
        closing = time.perf_counter() - ends[-1]
        found.first.append(ends[0] - begin)
        a_step = statistics.median(end - start for start, end in pairwise(ends))
        found.seconds.append(a_step + closing / (found.steps - ONCE))
        if found.condition in RUNGS:
            found.disk_bytes = fpdiff.open_run(run).ranks[0].size_bytes / found.steps


def measure(
    size: str, conditions: Sequence[str], rounds: int, steps: int, threads: int
) -> list[Measured]:
    """Return what each condition took over `rounds` rounds of blocks of `steps` steps."""
    torch.set_num_threads(threads)
    step = trainer(build(SIZES[size], seed=0), SIZES[size], seed=0)
    found = [
        Measured(
            size=size, condition=c, steps=SHORT if c in DEBUG_MODES else steps, threads=threads
        )
        for c in conditions
    ]
    for each in found:
        rehearse(step, each)
    limit = Limit(int(max(each.once_bytes for each in found)))
    bare, *others = found
    for turn in range(rounds):
        now = [each for each in others if not turn % 2 or each.condition not in DEBUG_MODES]
        for each in rotated(now, turn):
            for one in (each, bare) if turn % 2 else (bare, each):
                time_block(step, one)
            each.bare.append(bare.seconds[-1])
            if each.once_bytes:
                each.limit.append(limit.seconds(int(each.once_bytes)))
    bare.bare = bare.seconds
    return found


def rotated(found: list[Measured], turn: int) -> list[Measured]:
    """Return the conditions in the order of a round."""
    first = turn % len(found)
    return found[first:] + found[:first]


def measure_msprobe(size: str, rounds: int, threads: int) -> list[Measured]:
    """Return the same for msprobe, which takes its own seconds without it, before."""
    steps = msprobe_cost.FIRST + msprobe_cost.STEPS
    found = [
        Measured(size=size, condition=f"msprobe, {level}", steps=steps, threads=threads)
        for level in msprobe_cost.LEVELS
    ]
    for _ in range(rounds):
        for each, level in zip(found, msprobe_cost.LEVELS, strict=True):
            bare, first, seconds, each.disk_bytes = msprobe_cost.in_new_process(
                size, level, threads
            )
            each.bare.append(bare)
            each.first.append(first)
            each.seconds.append(seconds)
    return found


def table_of(found: list[Measured]) -> Table:
    """Return what was measured of one size as a table."""
    base = found[0]
    table = Table(
        f"Overhead on a GPT of {base.size.replace('M', ' M')} parameters; rounds:"
        f" {max(len(each.seconds) for each in found[1:])}, steps of a block: {base.steps},"
        f" threads: {base.threads}",
        (
            *("condition", "s a step", "ratio", "min", "max"),
            *("limit", "times limit", "MB once", "MB again", "GB/s"),
            *("events", "us an event", "us an op", "kB on disk", "bytes an event", "once, s"),
        ),
    )
    no_op = next((each for each in found if each.condition == NO_OP), None)
    for each in found:
        table.add(
            each.condition,
            f"{statistics.median(each.seconds):.4f}",
            *(f"{f(each.ratios):.3f}" for f in (statistics.median, min, max)),
            *_limit_cells(each),
            *_event_cells(each, no_op),
        )
    return table


def _limit_cells(each: Measured) -> list[str]:
    if not each.limit:
        return [""] * 5
    speed = each.once_bytes / statistics.median(each.limit)
    return [
        f"{statistics.median(each.limit_ratios):.3f}",
        f"{statistics.median(each.multiples):.2f}",
        f"{each.once_bytes / 1e6:.1f}",
        f"{each.again_bytes / 1e6:.1f}",
        f"{speed / 1e9:.1f}",
    ]


def _event_cells(each: Measured, no_op: Measured | None) -> list[str]:
    on_disk = f"{each.disk_bytes / 1e3:.1f}" if each.disk_bytes else ""
    if not each.events:
        return ["", "", "", on_disk, "", ""]
    once = statistics.median(each.first) - ONCE * statistics.median(each.seconds)
    return [
        f"{each.events:.0f}",
        f"{each.added(each.bare) / each.events * 1e6:.1f}",
        f"{each.added(no_op.seconds) / no_op.ops * 1e6:.1f}"
        if no_op and each.condition == "op"
        else "",
        on_disk,
        f"{each.disk_bytes / each.events:.1f}",
        f"{once:.2f}",
    ]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Measure what recording costs.")
    parser.add_argument("--size", choices=SIZES, default="17M", help="parameters of the model")
    parser.add_argument("--rounds", type=int, help="blocks of each condition")
    parser.add_argument("--steps", type=int, help="steps in a block")
    parser.add_argument("--threads", type=int, default=THREADS, help="of the arithmetic")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--debug-mode", action="store_true", help="PyTorch's DebugMode as well")
    parser.add_argument("--msprobe", action="store_true", help="msprobe as well")
    parser.add_argument("--json", type=Path, help="write what was measured there, print nothing")
    args = parser.parse_args()
    if args.msprobe and importlib.util.find_spec("msprobe") is None:
        parser.error("--msprobe needs msprobe: pip install mindstudio-probe")
    rounds, steps = (2, SHORT) if args.quick else DEFAULTS[args.size]
    rounds, steps = args.rounds or rounds, args.steps or steps
    if steps < SHORT:
        parser.error(f"--steps {steps}: a block needs {SHORT} steps, of which {ONCE} are not timed")
    conditions = [NO_RECORDER, *RUNGS]
    if args.size == "0.5M":  # Elsewhere the arithmetic hides what Python costs.
        conditions.append(NO_OP)
    if args.debug_mode:
        conditions += DEBUG_MODES
    found = measure(args.size, conditions, rounds, steps, args.threads)
    if args.msprobe:
        found += measure_msprobe(args.size, min(rounds, 3), args.threads)
    deliver(found, table_of(found), args.json)


if __name__ == "__main__":
    main()
