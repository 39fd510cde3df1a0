"""mix128 with torch operators, on any device.

Torch multiplies and adds int64 modulo 2^64, so lanes are int64 here; only the logical shift has to
be made of the arithmetic one. A pair of sums is an int64 tensor whose first dimension is 2.
"""

import torch

from fpdiff.fingerprint.digest.host import row_major
from fpdiff.fingerprint.digest.mix128.reference import (
    GAMMAS,
    LANE_BYTES,
    MULTIPLIERS,
    ROTATIONS,
    SHIFTS,
)

_CHUNK_LANES = {True: 1 << 14, False: 1 << 22}
"""So many are mixed at once on a host, where temporaries belong in a cache, and on a device."""


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of a plain tensor as two int64 words on its device."""
    return finish(sums(tensor), tensor.nbytes)


def sums(
    tensor: torch.Tensor, starts: torch.Tensor | None = None, run_lanes: int = 0
) -> torch.Tensor:
    """Return the sums of a plain tensor's lanes.

    Args:
        tensor: the tensor; it is copied where it is not row-major.
        starts: where the lanes are not those of a whole: they lie in it in runs of equal length,
            and these are the positions of the runs' first lanes. On the tensor's device.
        run_lanes: length of a run.
    """
    data = row_major(tensor)
    # A dimension of size 1 may keep a stride that no reshape touches and no view allows.
    data = data.as_strided((data.numel(),), (1,)).view(torch.uint8)
    num_whole, rest = divmod(data.numel(), LANE_BYTES)
    totals = data.new_zeros(2, dtype=torch.int64)
    whole = _lanes(data[: num_whole * LANE_BYTES])
    chunk = _CHUNK_LANES[data.is_cpu]
    for begin in range(0, num_whole, chunk):
        lanes = whole[begin : begin + chunk]
        totals += lane_sums(lanes, _positions(begin, lanes, starts, run_lanes))
    if rest:
        last = data.new_zeros(LANE_BYTES)
        last[:rest] = data[-rest:]
        lane = last.view(torch.int64)
        totals += lane_sums(lane, _positions(num_whole, lane, starts, run_lanes))
    return totals


def lane_sums(lanes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the sums over the last dimension of int64 lanes at int64 positions."""
    return torch.stack([word.sum(-1) for word in mixed(lanes, positions)])


def finish(totals: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Return the digests of wholes of one length from their sums, as words."""
    position = torch.full((), num_bytes, dtype=torch.int64, device=totals.device)
    return torch.stack([mixed(totals[word], position)[word] for word in (0, 1)])


def mixed(values: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two words that each lane is mixed into."""
    spread = values
    for bits in ROTATIONS:
        spread = spread ^ _shifted(values, bits) ^ (values << (64 - bits))
    keys = positions + 1
    return (
        _chain(spread ^ keys * _signed(GAMMAS[0]), MULTIPLIERS[0]),
        _chain(spread + keys * _signed(GAMMAS[1]), MULTIPLIERS[1]),
    )


def _chain(words: torch.Tensor, multipliers: tuple[int, int]) -> torch.Tensor:
    words = words * _signed(multipliers[0])
    words = words ^ _shifted(words, SHIFTS[0]) ^ _shifted(words, SHIFTS[1])
    words = words * _signed(multipliers[1])
    return words ^ _shifted(words, SHIFTS[1])


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the words shifted right, filled with zeros and not with their signs."""
    return (words >> bits) & ((1 << 64 - bits) - 1)


def _signed(word: int) -> int:
    return word - (word >> 63 << 64)


def _lanes(data: torch.Tensor) -> torch.Tensor:
    if data.storage_offset() % LANE_BYTES or data.data_ptr() % LANE_BYTES:
        data = data.clone()
    return data.view(torch.int64)


def _positions(
    begin: int, lanes: torch.Tensor, starts: torch.Tensor | None, run_lanes: int
) -> torch.Tensor:
    numbers = torch.arange(begin, begin + lanes.numel(), device=lanes.device)
    if starts is None:
        return numbers
    return starts[numbers // run_lanes] + numbers % run_lanes
