"""What a training step is measured under: nothing, the recorder at a rung, and other observers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode

import fpdiff

NO_RECORDER = "no recorder"
RUNGS = ("step", "layer", "op")
NO_OP = "no-op dispatch mode"
DEBUG_MODES = ("DebugMode, outputs", "DebugMode, inputs too")


class NoOp(TorchDispatchMode):
    """What any recorder of operators costs that is written in Python: it only passes them on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator."""
        return func(*args, **(kwargs or {}))


class OpCounter(NoOp):
    """The same, and counts."""

    ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator."""
        self.ops += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def debug_mode(*, hash_inputs: bool) -> Iterator[None]:
    """Run a block under PyTorch's DebugMode, told to hash tensors."""
    with DebugMode(), DebugMode.log_tensor_hashes("hash_tensor", hash_inputs=hash_inputs):
        yield


def observer(condition: str, run: Path) -> AbstractContextManager[Any]:
    """Return what a block of this condition runs in."""
    if condition in RUNGS:
        return fpdiff.record(run, level=condition)
    if condition in DEBUG_MODES:
        return debug_mode(hash_inputs=condition == DEBUG_MODES[1])
    if condition == NO_OP:
        return NoOp()  # type: ignore[no-untyped-call]  # Torch's __init__.
    return nullcontext()
