"""What a measurement was made on."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import fpdiff

PACKAGES = ("torch", "numpy", "pyarrow", "duckdb", "xxhash")
ROOT = Path(__file__).resolve().parent.parent


def describe() -> dict[str, str]:
    """Return what decides about figures: the machine, what else it does, and versions."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "processor": _first("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "fpdiff": f"{fpdiff.__version__}, commit {_commit()}",
    }


def _first(path: str, key: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
