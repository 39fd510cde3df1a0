"""How fast events are written to a run, and read from it.

    python bench/throughput.py [--events 1000000] [--steps 10]

The events are those of operators, made before the clock starts. To *flush* a step, which training
waits for, is to append it to the journal; *written* is what stands in Parquet files, which a thread
writes behind. Everything is *read*, every column checked, out of the page cache.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from op_run import Step, begin, steps_of
from tables import Table, deliver

import fpdiff


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One record of so many events: seconds for all of them, and its size."""

    events: int
    steps: int
    size_bytes: int
    flush_seconds: float
    write_seconds: float
    read_seconds: float


def measure(events: int, steps: int, rounds: int) -> list[Measured]:
    """Write a run and read it, some times."""
    recorded = list(steps_of(events, steps, differs=False))
    write_and_read(recorded[:1])  # Untimed: it imports what is imported when it is needed.
    return [write_and_read(recorded) for _ in range(rounds)]


def write_and_read(recorded: list[Step]) -> Measured:
    """Write a run and read it, once."""
    per_step = len(recorded[0][0])
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as name:
        root = Path(name) / "run"
        writer = begin(root, per_step)
        start = time.perf_counter()
        for columns, row in recorded:
            writer.end_segment_if_full()
            writer.flush(columns, row)
        flushed = time.perf_counter()
        writer.close()
        written = time.perf_counter()
        record = fpdiff.open_run(root).ranks[0]
        rows = sum(batch.num_rows for batch in record.event_batches())
        read = time.perf_counter()
        assert rows == len(recorded) * per_step, rows
        return Measured(
            events=rows,
            steps=len(recorded),
            size_bytes=record.size_bytes,
            flush_seconds=flushed - start,
            write_seconds=written - start,
            read_seconds=read - written,
        )


def table_of(found: list[Measured]) -> Table:
    """Return the medians as a table."""
    base = found[0]
    title = f"Writing and reading {base.events:,} events in {base.steps} steps,"
    columns = ("", "million events/s: median", "min", "max", "MB/s")
    table = Table(f"{title} {base.size_bytes / base.events:.1f} bytes each", columns)
    for name in ("flush", "write", "read"):
        seconds = [float(getattr(each, f"{name}_seconds")) for each in found]
        speeds = [base.events / each for each in seconds]
        table.add(
            {"flush": "flushed", "write": "written", "read": "read and checked"}[name],
            *(f"{f(speeds) / 1e6:.2f}" for f in (statistics.median, min, max)),
            "" if name == "flush" else f"{base.size_bytes / statistics.median(seconds) / 1e6:.0f}",
        )
    return table


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Measure the store.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write what was measured there, print nothing")
    args = parser.parse_args()
    found = measure(args.events, args.steps, args.rounds)
    deliver(found, table_of(found), args.json)


if __name__ == "__main__":
    main()
