"""What msprobe (package mindstudio-probe) costs in a training step.

    python bench/msprobe_cost.py --size 17M --level L1

Prints, as JSON, the seconds of a step without it, of the first two steps with it, of a later step
with it, and the bytes that it wrote of that. It does not leave the process as it was, so it cannot
take turns: each measurement is a new process, in which the steps without it come first.

Its `md5` summaries, which are CRC-32 in the version 26.2, are the mode that compares bits.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LEVELS = ("L0", "L1", "mix")
"""Modules; functions of torch; both."""

WARM_STEPS = 3
FIRST = 2
"""Steps with it that are given apart."""
STEPS = 2
"""Steps that are timed, with it and without."""


def in_new_process(size: str, level: str, threads: int) -> tuple[float, float, float, float]:
    """Return what a new process measured."""
    command = [sys.executable, __file__, "--size", size, "--level", level]
    command += ["--threads", str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    bare, first, seconds, size_bytes = json.loads(done.stdout.splitlines()[-1])
    return bare, first, seconds, size_bytes


def measure(size: str, level: str, threads: int, folder: Path) -> tuple[float, float, float, float]:
    """Measure in this process, which is of no other use afterwards."""
    import torch
    from gpt import SIZES, build, trainer
    from msprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(threads)
    model = build(SIZES[size], seed=0)
    step = trainer(model, SIZES[size], seed=0)
    _seconds(step, WARM_STEPS)
    bare = _seconds(step, STEPS)
    config = folder / "config.json"
    statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "md5"}
    settings = {"task": "statistics", "rank": [], "step": [], "statistics": statistics}
    config.write_text(json.dumps(settings | {"dump_path": str(folder), "level": level}))
    debugger = PrecisionDebugger(config_path=str(config), level=level, dump_path=str(folder))

    def dumped() -> None:
        debugger.start(model=model)
        step()
        debugger.stop()
        debugger.step()

    first = FIRST * _seconds(dumped, FIRST)
    seconds = _seconds(dumped, STEPS)
    written = sum(path.stat().st_size for path in folder.rglob("*.json")) / (FIRST + STEPS)
    return bare, first, seconds, written


def _seconds(step: Callable[[], None], steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description="Measure what msprobe costs.")
    parser.add_argument("--size", default="17M", help="parameters of the model")
    parser.add_argument("--level", choices=LEVELS, default="L1")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as name:
        print(json.dumps(measure(args.size, args.level, args.threads, Path(name))))


if __name__ == "__main__":
    main()
