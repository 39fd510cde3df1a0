"""What an event costs in Python, and on disk: a model so small that hashing is nothing.

    python bench/event_cost.py [--steps 200]

Prints, for each rung, the time that recording adds per event (the smallest of several batches, with
and without recorder in turn, so that what else the machine does is left out) and the bytes on disk
per event over all steps.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fpdiff

BATCHES = 10


def make() -> Callable[[], None]:
    """Return a training step of a 48-layer model of 26,000 parameters."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        for _ in range(12)
    ]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        optimizer.step()

    return step


def time_batch(step: Callable[[], None], steps: int) -> float:
    """Return the seconds of one step, a mean over a batch."""
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure what an event costs.")
    parser.add_argument("--steps", type=int, default=200, help="steps recorded for each rung")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    step = make()
    time_batch(step, 20)
    table = Table("rung", "events a step", "us an event", "bytes an event")
    for level in ("step", "layer"):
        bare, recorded = [], []
        with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as folder:
            run = Path(folder) / "run"
            bare += [time_batch(step, steps // BATCHES) for _ in range(BATCHES)]
            with fpdiff.record(run, level=level):
                recorded += [time_batch(step, steps // BATCHES) for _ in range(BATCHES)]
            bare += [time_batch(step, steps // BATCHES) for _ in range(BATCHES)]
            record = fpdiff.open_run(run).ranks[0]
            events = record.num_events / (BATCHES * (steps // BATCHES))
            size = record.size_bytes / record.num_events
        added = (min(recorded) - min(bare)) / events
        table.add_row(level, f"{events:.0f}", f"{added * 1e6:.1f}", f"{size:.1f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
