"""mix128 in Triton: one pass over a tensor's memory.

The caller keeps the tensor alive until the launches have been queued, and uses one stream.
"""

import math

import torch

from fpdiff.fingerprint.digest.mix128.device import MAX_SLOTS
from fpdiff.fingerprint.digest.mix128.kernels import finish, sum_lanes
from fpdiff.fingerprint.digest.mix128.reference import LANE_BYTES

BLOCK_LANES = 1024


def digest(
    tensor: torch.Tensor, out: torch.Tensor | None = None, slots: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the digest of a row-major plain tensor as two int64 words on its device.

    Args:
        tensor: the tensor.
        out: where to write the digest.
        slots: MAX_SLOTS pairs of int64 words for what is on the way to it.
    """
    num_lanes = math.ceil(tensor.nbytes / LANE_BYTES)
    stretch = BLOCK_LANES * math.ceil(num_lanes / (BLOCK_LANES * MAX_SLOTS))
    num_slots = math.ceil(num_lanes / max(stretch, 1))
    if slots is None:
        slots = torch.empty((num_slots, 2), dtype=torch.int64, device=tensor.device)
    if out is None:
        out = torch.empty(2, dtype=torch.int64, device=tensor.device)
    if num_slots:
        sum_lanes[num_slots,](
            tensor.data_ptr(),
            tensor.nbytes,
            stretch,
            slots,
            BLOCK=BLOCK_LANES,
            WORD=word_bytes(tensor),
        )
    finish[1,](slots, num_slots, tensor.nbytes, out, BLOCK=BLOCK_LANES)
    return out


def word_bytes(tensor: torch.Tensor) -> int:
    """Return the width of the widest words that a tensor's address is a multiple of."""
    return math.gcd(LANE_BYTES, tensor.data_ptr()) if tensor.nbytes else LANE_BYTES
