"""How a comparison grows with ranks, steps and events, on runs that were made up.

    python bench/fleet.py --ranks 3072 --steps 800 --compact
    python bench/fleet.py --ranks 64,128,256 --steps 50,100,200 --events 18,120 --plot growth.png
    python bench/fleet.py --ranks 64 --steps 800 --events 978 --plant 33:1 --count

Writes two runs, drops them from the page cache, compares them in a new process, and prints the
seconds from its start to the verdict, without the imports, the most memory that it had, and what it
read. Of several values, the first of each list stands while another list varies. Names and inodes
stay cached by the kernel.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import fpdiff

LAYER_EVENTS = 8 * 12 * 2 * 16 + 8 * 12 * 3
"""Events of a step at the rung `layer` on a rank with 8 transformer layers of 12 modules, over 16
microbatches: an output and a gradient each, and three of each parameter."""

VARIED = ("ranks", "steps", "events")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One comparison; `share` is what was read of two records with LAYER_EVENTS in each step."""

    ranks: int
    steps: int
    events: int
    files: int
    seconds: float
    peak_mib: float
    read_bytes: int
    share: float
    counted: int


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure comparisons of many ranks.")
    for name, default in (("ranks", "64"), ("steps", "50"), ("events", "18")):
        parser.add_argument(f"--{name}", type=_numbers, default=_numbers(default))
    parser.add_argument("--shards", type=int, default=8, help="ranks that split the model")
    parser.add_argument("--plant", default="", metavar="RANK:STEP", help="of B's difference")
    parser.add_argument("--twins", action="store_true", help="B does not differ")
    parser.add_argument("--compact", action="store_true", help="run `fpdiff compact` first")
    parser.add_argument("--count", action="store_true", help="count every event that differs")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that write")
    parser.add_argument("--folder", type=Path, help="for the runs; a temporary one by default")
    parser.add_argument("--plot", type=Path, help="needs matplotlib")
    parser.add_argument("--compare", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compare:
        compare(*args.compare, count=args.count)
        return
    found = [m for case in _cases(args) for m in measure(args, *case)]
    Console(width=None if sys.stdout.isatty() else 110).print(_table(found))
    if args.plot:
        plot(args, found)


def compare(a: str, b: str, *, count: bool) -> None:
    """Compare two runs, and print what it took as JSON."""
    before = _read_bytes()
    begin = time.perf_counter()
    verdict = fpdiff.compare(a, b, count=count)
    seconds = time.perf_counter() - begin
    origins = [[origin.rank, origin.step] for origin in verdict.origins]
    counted = verdict.counted.events if verdict.counted else 0
    found = {"seconds": seconds, "read_bytes": _read_bytes() - before, "origins": origins}
    found |= {"peak_mib": _peak_kib() / 1024}
    print(json.dumps(found | {"counted": counted, "differing": len(verdict.rank_steps)}))


def measure(args: argparse.Namespace, ranks: int, steps: int, events: int) -> list[Measured]:
    """Write two runs and compare them."""
    # It imports torch, which the process that is measured does not need.
    from fleet_run import Fleet, layers_for, write_fleet

    planted = None if args.twins else _planted(args, ranks, steps)
    shape: dict[str, Any] = {"ranks": ranks, "steps": steps, "layers": layers_for(events)}
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-", dir=args.folder) as name:
        runs = [Path(name) / arm for arm in "ab"]
        for run, where in zip(runs, (None, planted), strict=True):
            fleet = Fleet(**shape, shards=min(args.shards, ranks), planted=where)
            write_fleet(run, fleet, args.processes)
            if args.compact:
                fpdiff.compact(run)
        own = fleet.events_of_a_step
        sizes = [path.stat().st_size for path in (runs[0] / "events").rglob("*.parquet")]
        layer = 2 * sum(sizes) / own * LAYER_EVENTS
        measured = []
        for _ in range(args.repeat):
            found = _in_new_process(runs, count=args.count)
            assert found.pop("origins") == ([list(planted)] if planted else []), planted
            assert found.pop("differing") == (ranks if planted else 0)
            files = len(sizes)
            share = found["read_bytes"] / layer
            measured.append(
                Measured(ranks=ranks, steps=steps, events=own, files=files, share=share, **found)
            )
        return measured


def plot(args: argparse.Namespace, found: list[Measured]) -> None:
    """Draw the seconds against what was varied."""
    from matplotlib import pyplot

    varied = [name for name in VARIED if len(getattr(args, name)) > 1]
    figure, axes = pyplot.subplots(1, len(varied), sharey=True, squeeze=False)
    base = found[0]
    for axis, name in zip(axes[0], varied, strict=True):
        others = [other for other in VARIED if other != name]
        points = [m for m in found if all(getattr(m, o) == getattr(base, o) for o in others)]
        points.sort(key=lambda m: int(getattr(m, name)))
        axis.plot([getattr(m, name) for m in points], [m.seconds for m in points], marker="o")
        axis.set_xlabel(name)
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("seconds to the verdict")
    figure.savefig(args.plot)


def _cases(args: argparse.Namespace) -> list[tuple[int, int, int]]:
    base = {name: getattr(args, name)[0] for name in VARIED}
    cases = [base] + [base | {name: n} for name in VARIED for n in getattr(args, name)[1:]]
    return [(case["ranks"], case["steps"], case["events"]) for case in cases]


def _planted(args: argparse.Namespace, ranks: int, steps: int) -> tuple[int, int]:
    if not args.plant:
        return ranks // 3, steps * 3 // 4
    rank, _, step = args.plant.partition(":")
    return int(rank), int(step)


def _in_new_process(runs: list[Path], *, count: bool) -> dict[str, Any]:
    os.sync()
    for run in runs:
        for path in run.rglob("*"):
            if path.is_file():
                _forget(path)
    command = [sys.executable, __file__, *(["--count"] if count else [])]
    command += ["--compare", *map(str, runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _forget(path: Path) -> None:
    """Ask the kernel to drop a file's pages, so that it is read from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _read_bytes() -> int:
    """Return how much this process has read, from the disk or from the page cache."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def _peak_kib() -> int:
    """Return the most memory that this process has had.

    The peak that getrusage knows begins with that of the parent, which has imported torch.
    """
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def _table(found: list[Measured]) -> Table:
    table = Table("ranks", "steps", "events a step", "event files", "seconds", "peak MiB")
    table.add_column("MB read")
    table.add_column("of a layer-level record")
    table.add_column("events counted")
    for m in found:
        table.add_row(
            f"{m.ranks:,}",
            f"{m.steps:,}",
            f"{m.events:,}",
            f"{m.files:,}",
            f"{m.seconds:.2f}",
            f"{m.peak_mib:.0f}",
            f"{m.read_bytes / 1e6:,.0f}",
            f"{m.share:.2%}",
            f"{m.counted:,}",
        )
    return table


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
