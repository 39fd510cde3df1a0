"""How long a comparison takes, and how much memory, against the number of operators' events.

    python bench/compare_time.py [--events 100000,1000000] [--steps 10]

Writes two runs of one rank as the recorder would, each with so many events of operators over the
steps. From the middle of the last step on, run B differs in everything that depends on one event.
Then they are compared in a new process, see compared.py.
"""

import argparse
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from compared import in_new_process
from op_run import write
from tables import Table, deliver, numbers, spread


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One comparison of two runs with so many events each."""

    events: int
    steps: int
    mismatched: int
    seconds: float
    peak_mib: float


def measure(events: int, steps: int, repeat: int) -> list[Measured]:
    """Write two runs and compare them some times."""
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as name:
        runs = [Path(name) / arm for arm in "ab"]
        for run, differs in zip(runs, (False, True), strict=True):
            write(run, events, steps, differs=differs)
        measured = []
        for _ in range(repeat):
            found = in_new_process(runs)
            assert found["origins"] == [[0, steps - 1]], found
            kept = {name: found[name] for name in ("mismatched", "seconds", "peak_mib")}
            measured.append(Measured(events=events, steps=steps, **kept))
        return measured


def table_of(found: list[Measured]) -> Table:
    """Return the comparisons as a table."""
    columns = ("events of a run", "steps", "differing", "seconds to the verdict", "peak MiB")
    table = Table("Comparing operators' events of one rank", columns)
    for case, group in groupby(found, lambda m: (m.events, m.steps, m.mismatched)):
        again = list(group)
        table.add(
            *(f"{number:,}" for number in case),
            spread([each.seconds for each in again]),
            f"{max(each.peak_mib for each in again):.0f}",
        )
    return table


def main() -> None:
    """Write the runs, compare them three times, and print the table."""
    parser = argparse.ArgumentParser(description="Measure a comparison.")
    parser.add_argument("--events", type=numbers, default=[1_000_000])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write what was measured there, print nothing")
    args = parser.parse_args()
    found = [m for n in args.events for m in measure(n, args.steps, args.repeat)]
    deliver(found, table_of(found), args.json)


if __name__ == "__main__":
    main()
