"""How a comparison grows with ranks, steps and events, on runs that were made up.

    python bench/fleet.py --ranks 3072 --steps 800 --compact
    python bench/fleet.py --ranks 64,128,256 --steps 50,100,200 --events 18,120 --plot growth.png
    python bench/fleet.py --ranks 64 --steps 800 --events 978 --plant 33:1 --count

Writes two runs and compares them in a new process, see compared.py. Of several values, the first of
each list stands while another list varies. Names and inodes stay cached by the kernel.
"""

import argparse
import os
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from compared import in_new_process
from drawing import draw_medians
from tables import Table, deliver, numbers, spread

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
        parser.add_argument(f"--{name}", type=numbers, default=numbers(default))
    parser.add_argument("--shards", type=int, default=8, help="ranks that split the model")
    parser.add_argument("--plant", default="", metavar="RANK:STEP", help="of B's difference")
    parser.add_argument("--twins", action="store_true", help="B does not differ")
    parser.add_argument("--compact", action="store_true", help="run `fpdiff compact` first")
    parser.add_argument("--count", action="store_true", help="count every event that differs")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that write")
    parser.add_argument("--folder", type=Path, help="for the runs; a temporary one by default")
    parser.add_argument("--plot", type=Path, help="needs matplotlib")
    parser.add_argument("--json", type=Path, help="write what was measured there, print nothing")
    args = parser.parse_args()
    if args.plot and all(len(getattr(args, name)) == 1 for name in VARIED):
        parser.error("--plot needs several values of --ranks, --steps or --events")
    found = [m for case in _cases(args) for m in measure(args, *case)]
    deliver(found, table_of(found), args.json)
    if args.plot:
        plot(found, args.plot)


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
            found = in_new_process(runs, count=args.count)
            assert found.pop("origins") == ([list(planted)] if planted else []), planted
            assert found.pop("differing_ranks") == (ranks if planted else 0)
            del found["mismatched"]  # Of the few ranks whose events were read.
            files = len(sizes)
            share = found["read_bytes"] / layer
            measured.append(
                Measured(ranks=ranks, steps=steps, events=own, files=files, share=share, **found)
            )
        return measured


def plot(found: list[Measured], path: Path) -> None:
    """Draw the seconds against what was varied."""
    from matplotlib import pyplot

    varied = [name for name in VARIED if len({getattr(m, name) for m in found}) > 1]
    figure, axes = pyplot.subplots(1, len(varied), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], varied, strict=True):
        draw_medians(axis, points(found, name))
        axis.set_xlabel(name)
    axes[0][0].set_ylabel("seconds to the verdict")
    figure.savefig(path)


def points(found: list[Measured], name: str) -> list[tuple[int, float]]:
    """Return the seconds against one of VARIED, the others being as in the first."""
    others = [other for other in VARIED if other != name]
    base = found[0]
    alike = [m for m in found if all(getattr(m, o) == getattr(base, o) for o in others)]
    return [(getattr(m, name), m.seconds) for m in alike]


def _cases(args: argparse.Namespace) -> list[tuple[int, int, int]]:
    base = {name: getattr(args, name)[0] for name in VARIED}
    cases = [base] + [base | {name: n} for name in VARIED for n in getattr(args, name)[1:]]
    return [(case["ranks"], case["steps"], case["events"]) for case in cases]


def _planted(args: argparse.Namespace, ranks: int, steps: int) -> tuple[int, int]:
    if not args.plant:
        return ranks // 3, steps * 3 // 4
    rank, _, step = args.plant.partition(":")
    return int(rank), int(step)


def table_of(found: list[Measured]) -> Table:
    """Return the comparisons as a table."""
    table = Table(
        "Comparing many ranks",
        (
            *("ranks", "steps", "events a step", "event files", "seconds", "peak MiB"),
            *("MB read", "of a layer-level record", "events counted"),
        ),
    )
    for case, group in groupby(found, lambda m: (m.ranks, m.steps, m.events, m.files)):
        again = list(group)
        m = again[0]
        table.add(
            *(f"{number:,}" for number in case),
            spread([each.seconds for each in again]),
            f"{max(each.peak_mib for each in again):.0f}",
            f"{m.read_bytes / 1e6:,.0f}",
            f"{m.share:.2%}",
            f"{m.counted:,}" if m.counted else "",
        )
    return table


if __name__ == "__main__":
    main()
