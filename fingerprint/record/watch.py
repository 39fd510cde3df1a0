"""The parameters after each optimizer step, and nothing else: what a recording is held against.

It shares no state with the recorder, so that an error there cannot hide itself. Its hook comes
after the recorder's own.
"""

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
                self._is_off = True
                warn(f"the parameters of pid {os.getpid()} are not watched: {error}")

    def _write(self, digests: list[str]) -> None:
        if self._file is None:
            path = self._folder / f"{rank_name(process.rank())}.jsonl"
            self._file = path.open("x", encoding="utf-8")
        self._file.write(json.dumps(digests) + "\n")
        self._file.flush()


def _text(parameter: torch.Tensor) -> str:
    try:
        return digest(parameter).hex()
    except Undigestible as reason:
        return str(reason)
