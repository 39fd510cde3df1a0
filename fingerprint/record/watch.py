"""The parameters after each optimizer step, and nothing else: what a recording is held against.

It shares no state with the recorder, so that an error there cannot hide itself. Its hook comes
after the recorder's own.
"""

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from fpdiff.fingerprint.digest.host import Undigestible, digest
from fpdiff.fingerprint.record.job import process
from fpdiff.fingerprint.record.warning import warn
from fpdiff.store.schema import rank_name


def watch(folder: str) -> None:
    """Write the digests of this process's parameters to `rank=NNNNN.jsonl` in a folder."""
    torch_optimizer.register_optimizer_step_post_hook(_Watch(Path(folder)).after)


class _Watch:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None
        self._is_off = False

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Write a line: the digests of all parameters of the optimizer that has stepped."""
        if self._is_off or torch.compiler.is_compiling():
            return
        with torch._C.DisableTorchFunction():
            try:
                self._write([_text(p) for g in optimizer.param_groups for p in g["params"]])
            except OSError as error:
                self._give_up()
                warn(f"the parameters of pid {os.getpid()} are not watched: {error}")

    def _write(self, digests: list[str]) -> None:
        if self._file is None:
            path = self._folder / f"{rank_name(process.rank())}.jsonl"
            self._file = path.open("xb", buffering=0)
        line = f"{json.dumps(digests)}\n".encode()
        if self._file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _give_up(self) -> None:
        """Leave an empty file, which no optimizer's step does: the rest would be missing."""
        self._is_off = True
        if self._file is not None:
            with contextlib.suppress(OSError):  # What is left ends within a line then.
                self._file.truncate(0)
            self._file.close()


def _text(parameter: torch.Tensor) -> str:
    try:
        return digest(parameter).hex()
    except Undigestible as reason:
        return str(reason)
