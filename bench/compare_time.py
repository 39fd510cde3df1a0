"""How long a comparison takes, and how much memory, against the number of operators' events.

    python bench/compare_time.py [--events 1000000] [--steps 10]

Writes two runs of one rank as the recorder would, each with so many events of operators over the
steps. From the middle of the last step on, run B differs in everything that depends on one event.
Then a new process compares them, and prints the seconds from its start to the verdict, without the
imports, and the most memory that it had.
"""

import argparse
import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import fpdiff
from fpdiff.store.columns import EventColumns
from fpdiff.store.files import write_json
from fpdiff.store.schema import DIGEST_ALGORITHM, VERSION
from fpdiff.store.writer import RankWriter

SITES = 20_000
"""Calls of operators in a microbatch: more events of a step are further microbatches."""

PHASES = ("forward", "backward", "optimizer")


def write(root: Path, events: int, steps: int, *, differs: bool) -> None:
    """Write a run; if it differs, from the middle of its last step on."""
    root.mkdir(parents=True)
    info: dict[str, Any] = {"schema": VERSION, "digest": DIGEST_ALGORITHM, "level": "op"}
    info |= {"command": ["python", "train.py"], "created": "2026-01-01T00:00:00+00:00"}
    write_json(root / "run.json", info | {"settings": {}, "exit_code": 0})
    writer = RankWriter(root, 0)
    writer.write_info({"rank": 0, "environment": {}, "settings": {}, "finished": True})
    per_step = events // steps
    sites = min(per_step, SITES)
    for site in range(sites):
        writer.add_site(_site(site, sites))
    for step in range(steps):
        columns = EventColumns(step, step * per_step)
        middle = columns.first_seq + per_step // 2
        for index in range(per_step):
            seq = columns.first_seq + index
            wrong = differs and step == steps - 1 and seq >= middle and (seq - middle) % 4 == 0
            # A chain of every fourth event: each reads its neighbour four before, and another.
            reads = [s for s in (seq - 4, seq - 64) if s >= columns.first_seq]
            columns.append(index // sites, index % sites, _digest(seq, wrong), reads, 0)
        writer.end_segment_if_full()
        writer.flush(columns, _row(columns, step))
    writer.close()


def _site(site: int, sites: int) -> dict[str, Any]:
    layer, op = divmod(site, 50)
    return {
        "site": site,
        "phase": PHASES[3 * site // sites],
        "kind": "result",
        "module": f"layers.{layer % 100}",
        "module_class": "Block",
        "call": 0,
        "op": f"aten.op{op}.default",
        "occurrence": layer // 100,
        "slot": "out.0",
        "members": None,
        "dtype": "float32",
        "shape": [4, 8],
    }


def _digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def _row(columns: EventColumns, step: int) -> dict[str, Any]:
    content = hashlib.blake2b(bytes(columns.digests), digest_size=16).digest()
    row: dict[str, Any] = {"step": step, "first_seq": columns.first_seq, "events": len(columns)}
    row |= {
        "microbatches": columns.microbatches[-1] + 1,
        "ended": True,
        "content": content,
        "chain": content,
    }
    return row | {"structure": bytes(16), "content_forward": content}


def compare(a: str, b: str) -> None:
    """Compare two runs, and print seconds and MiB."""
    begin = time.perf_counter()
    verdict = fpdiff.compare(a, b)
    seconds = time.perf_counter() - begin
    assert verdict.verdict == "diverged" and len(verdict.origins) == 1, verdict.summary
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds} {peak} {verdict.rank_steps[0].mismatched}")


def main() -> None:
    """Write the runs, compare them three times, and print the table."""
    parser = argparse.ArgumentParser(description="Measure a comparison.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compare", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compare:
        compare(*args.compare)
        return
    table = Table("events of a run", "steps", "differing", "seconds to the verdict", "peak MiB")
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as name:
        runs = [Path(name) / arm for arm in "ab"]
        for run, differs in zip(runs, (False, True), strict=True):
            write(run, args.events, args.steps, differs=differs)
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, __file__, "--compare", *map(str, runs)],
                check=True,
                capture_output=True,
                text=True,
            )
            seconds, peak, differing = map(float, done.stdout.split())
            table.add_row(
                f"{args.events:,}",
                str(args.steps),
                f"{differing:,.0f}",
                f"{seconds:.2f}",
                f"{peak:.0f}",
            )
    Console(width=None if sys.stdout.isatty() else 100).print(table)


if __name__ == "__main__":
    main()
