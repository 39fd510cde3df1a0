"""The digests that a run can be recorded with.

They digest tensors; names, options and generators' states are always digested with XXH3-128, and
so is what a tensor made of several parts comes to.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fpdiff.fingerprint.digest import host
from fpdiff.fingerprint.digest.host import Memory, OfPlain, PlainView
from fpdiff.fingerprint.digest.mix128 import device, reference


@dataclass(frozen=True)
class Algorithm:
    """How tensors are digested.

    Attributes:
        of_memory: returns the digest of a stretch of host memory.
        of_plain: returns that of a plain tensor, and raises Undigestible; see `host.digest_plain`.
    """

    of_memory: Callable[[Memory], bytes]
    of_plain: OfPlain


def _mix128(tensor: torch.Tensor, view: PlainView) -> bytes:
    """Return the mix128 digest of a plain tensor; of one on a device, only the digest is copied."""
    if view.is_on_host:
        return host.digest_plain(tensor, view, reference.digest)
    host.check_readable(tensor, view)
    words: bytes = device.digest(tensor).cpu().numpy().tobytes()
    return words


ALGORITHMS = {
    "xxh3-128": Algorithm(host.digest_bytes, host.digest_plain),
    "mix128": Algorithm(reference.digest, _mix128),
}
"""By the name that a run carries. Host memory and device memory of equal bytes digest alike."""
