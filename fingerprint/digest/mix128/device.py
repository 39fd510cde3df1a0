"""mix128 of a tensor where the tensor is: a device's is not copied to the host."""

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch

from fpdiff.fingerprint.digest.host import row_major
from fpdiff.fingerprint.digest.mix128 import vectorised

MAX_SLOTS = 2048
"""Stretches that a tensor is digested in at once, on a device: enough for every multiprocessor."""


def digest(
    tensor: torch.Tensor, out: torch.Tensor | None = None, slots: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the digest of a plain tensor as two int64 words on its device.

    It is queued like any operator; nothing waits for it. A tensor that is not row-major is copied.

    Args:
        tensor: the tensor.
        out: where to write the digest, on the tensor's device.
        slots: MAX_SLOTS pairs of int64 words there to work with. With both, a row-major tensor is
            digested by Triton's kernels with nothing allocated.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        launches = _launches(tensor)
        if launches is None:
            words = vectorised.digest(tensor)
            return words if out is None else out.copy_(words)
        with torch.cuda.device_of(tensor):
            return launches.digest(row_major(tensor), out, slots)  # type: ignore[no-any-return]


def digest_many(tensors: Sequence[torch.Tensor], out: torch.Tensor, lists: dict[Any, Any]) -> None:
    """Write the digests of row-major plain tensors of one device, in one launch if Triton is there.

    Args:
        tensors: at least one; nothing may write to them until this is queued.
        out: a row of two int64 words for each, on their device.
        lists: belongs to the device; what one launch needs to know of many tensors stays in it.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        launches = _launches(tensors[0])
        if launches is not None:
            with torch.cuda.device_of(tensors[0]):
                launches.digest_many(tensors, out, lists)
            return
    for tensor, row in zip(tensors, out, strict=True):
        digest(tensor, row)


def _launches(tensor: torch.Tensor) -> ModuleType | None:
    """Return the Triton form if it can digest a tensor, else None."""
    return _triton_form() if tensor.is_cuda else None


@cache
def _triton_form() -> ModuleType | None:
    try:
        from fpdiff.fingerprint.digest.mix128 import launches
    except ImportError:
        return None
    return launches
