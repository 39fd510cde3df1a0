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

MAX_LISTS = 8
"""Lists of tensors that stay laid out: a step has one of its start, and a few of its end."""


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
        self._parts = _on(device, parts)
        self._wholes = _on(device, wholes)
        self._slots = torch.empty((len(parts), 2), dtype=torch.int64, device=device)

    def digests(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the digests, a row of two int64 words for each tensor, on the tensors' device.

        Args:
            out: where to write them.
        """
        if len(self._parts):
            sum_many[len(self._parts),](
                self._parts, self._slots, BLOCK=BLOCK_LANES, WORD=self._word
            )
        if out is None:
            out = torch.empty_like(self._wholes[:, :2])
        finish_many[len(out),](self._wholes, self._slots, out, BLOCK=BLOCK_LANES)
        return out


Lists = dict[tuple[tuple[int, int], ...], TensorList]
"""By address and bytes of each tensor, the one that was used last at the end."""


def digest_many(tensors: Sequence[torch.Tensor], out: torch.Tensor, lists: Lists) -> None:
    """Write the digests of tensors, in one launch, laid out anew only where they lie elsewhere.

    Args:
        tensors: row-major plain tensors on one device.
        out: a row of two int64 words for each.
        lists: what is laid out already; it is kept short.
    """
    where = tuple((tensor.data_ptr(), tensor.nbytes) for tensor in tensors)
    known = lists.pop(where) if where in lists else TensorList(tensors)
    lists[where] = known
    if len(lists) > MAX_LISTS:
        del lists[next(iter(lists))]
    known.digests(out)


def _on(device: torch.device, rows: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Return a table on a device, without waiting for what is queued there."""
    table = torch.tensor(rows, dtype=torch.int64)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def word_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the width of the widest words that the addresses of all tensors are multiples of."""
    return math.gcd(LANE_BYTES, *(tensor.data_ptr() for tensor in tensors if tensor.nbytes))
