"""mix128 of a tensor where the tensor is: a device's is not copied to the host."""

from functools import cache
from types import ModuleType

import torch

from fpdiff.fingerprint.digest.host import row_major
from fpdiff.fingerprint.digest.mix128 import vectorised


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of a plain tensor as two int64 words on its device.

    It is queued like any operator; nothing waits for it. A tensor that is not row-major is copied.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        launches = _launches() if tensor.is_cuda else None
        if launches is None:
            return vectorised.digest(tensor)
        with torch.cuda.device_of(tensor):
            words: torch.Tensor = launches.digest(row_major(tensor))
            return words


@cache
def _launches() -> ModuleType | None:
    """Return the Triton form; None where Triton is not installed."""
    try:
        from fpdiff.fingerprint.digest.mix128 import launches
    except ImportError:
        return None
    return launches
