"""Compares two runs in a new process, and says what it took.

    python bench/compared.py RUN_A RUN_B [--count]

Prints, as JSON, the seconds from the start to the verdict, without the imports, the most memory
that the process had, what it read, and what it found.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fpdiff


def in_new_process(runs: Sequence[Path], *, count: bool = False) -> dict[str, Any]:
    """Return what a new process found, after the runs were dropped from the page cache."""
    os.sync()
    for run in runs:
        for path in run.rglob("*"):
            if path.is_file():
                _forget(path)
    command = [sys.executable, __file__, *map(str, runs), *(["--count"] if count else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(a: str, b: str, *, count: bool) -> dict[str, Any]:
    """Compare two runs in this process."""
    before = _read_bytes()
    begin = time.perf_counter()
    verdict = fpdiff.compare(a, b, count=count)
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "peak_mib": _peak_kib() / 1024,
        "read_bytes": _read_bytes() - before,
        "origins": [[origin.rank, origin.step] for origin in verdict.origins],
        "differing_ranks": len(verdict.rank_steps),
        "mismatched": sum(each.mismatched for each in verdict.rank_steps),
        "counted": verdict.counted.events if verdict.counted else 0,
    }


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


def main() -> None:
    """Compare, and print the result."""
    parser = argparse.ArgumentParser(description="Measure one comparison.")
    parser.add_argument("runs", nargs=2)
    parser.add_argument("--count", action="store_true", help="count every event that differs")
    args = parser.parse_args()
    print(json.dumps(compare(*args.runs, count=args.count)))


if __name__ == "__main__":
    main()
