"""The program's running line: the innermost frame that is not torch's, Triton's or ours.

In a backward pass no frame outside of it counts: the call that began it says nothing of the op that
runs, and where autograd runs nodes in a thread of its own there is none.
"""

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

import torch
from torch.autograd import graph

_TORCH = Path(torch.__file__).parent
_PACKAGES = (
    *(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")),
    str(_TORCH.parent) + os.sep,
)
_TRITON = tuple(f"{folder}triton{os.sep}" for folder in _PACKAGES)
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_HERE = str(Path(__file__).parents[2]) + os.sep  # the package that records
# Not imported: the recorder may not import what `fpdiff` offers to readers of runs.
_FACE = str(sys.modules["fpdiff"].__file__)
_PASS = graph._engine_run_backward.__code__
"""The code that every backward pass runs in."""
_NOT_THE_PROGRAM = (_HERE, str(_TORCH) + os.sep, *_TRITON, _FACE, "<frozen")


def running_line() -> str | None:
    """Return `train.py:34`, None where no frame is the program's.

    A path is relative to the working directory or the folder of packages where it lies below one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _PASS:
        path = frame.f_code.co_filename
        if _is_programs(path):
            return f"{_short(path, _working_folder())}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # It has been removed.
        return None


@cache
def _is_programs(path: str) -> bool:
    if path.startswith(_NOT_THE_PROGRAM):
        return False
    return not path.startswith(_LIBRARY) or path.startswith(_PACKAGES)


@cache
def _short(path: str, working_folder: str | None) -> str:
    own = () if working_folder is None else (working_folder + os.sep,)
    for folder in (*own, *_PACKAGES):
        if path.startswith(folder):
            return path.removeprefix(folder)
    return path
