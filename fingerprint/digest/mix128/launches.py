"""mix128 in Triton: one pass over a tensor's memory, or over that of many tensors in one launch.

The caller keeps the tensors alive until the launches have been queued, and uses one stream.
"""

import math
from collections.abc import Sequence

import torch

from fpdiff.fingerprint.digest.mix128.device import MAX_SLOTS
from fpdiff.fingerprint.digest.mix128.kernels import finish_many, finish_one, sum_many, sum_one
from fpdiff.fingerprint.digest.mix128.reference import LANE_BYTES

BLOCK_LANES = 1024
STRETCH_LANES = 1 << 15
"""What a program takes in the launch over many tensors: 256 KiB."""


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
        sum_one[num_slots,](
            tensor.data_ptr(),
            tensor.nbytes,
            stretch,
            slots,
            BLOCK=BLOCK_LANES,
            WORD=word_bytes([tensor]),
        )
    finish_one[1,](slots, num_slots, tensor.nbytes, out, BLOCK=BLOCK_LANES)
    return out


class TensorList:
    """Digests the same tensors again and again (a model's parameters), in one launch each time."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lay out what each program does.

        Args:
            tensors: row-major plain tensors on one device; they must stay where they are.
        """
        parts: list[tuple[int, int, int, int]] = []
        wholes: list[tuple[int, int, int]] = []
        for tensor in tensors:
            num_lanes = math.ceil(tensor.nbytes / LANE_BYTES)
            first_slot = len(parts)
            for begin in range(0, num_lanes, STRETCH_LANES):
                end = min(begin + STRETCH_LANES, num_lanes)
                parts.append((tensor.data_ptr(), tensor.nbytes, begin, end))
            wholes.append((first_slot, len(parts), tensor.nbytes))
        self._word = word_bytes(tensors)
        device = tensors[0].device
        self._parts = torch.tensor(parts, dtype=torch.int64).to(device)
        self._wholes = torch.tensor(wholes, dtype=torch.int64).to(device)
        self._slots = torch.empty((len(parts), 2), dtype=torch.int64, device=device)

    def digests(self) -> torch.Tensor:
        """Return the digests, a row of two int64 words for each tensor, on the tensors' device."""
        if len(self._parts):
            sum_many[len(self._parts),](
                self._parts, self._slots, BLOCK=BLOCK_LANES, WORD=self._word
            )
        out = torch.empty_like(self._wholes[:, :2])
        finish_many[len(out),](self._wholes, self._slots, out, BLOCK=BLOCK_LANES)
        return out


def word_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the width of the widest words that the addresses of all tensors are multiples of."""
    return math.gcd(LANE_BYTES, *(tensor.data_ptr() for tensor in tensors if tensor.nbytes))
