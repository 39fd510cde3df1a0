"""mix128 in numpy: what the other forms are held to, and what digests host memory."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fpdiff.fingerprint.digest.host import Memory

LANE_BYTES = 8

ROTATIONS = (26, 51)
SHIFTS = (13, 32)

# The first 64 fractional bits of the square roots of 2, 3, 5, 7, 11 and 13, made odd.
GAMMAS = (0x6A09E667F3BCC909, 0xBB67AE8584CAA73B)
MULTIPLIERS = (
    (0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    (0x510E527FADE682D1, 0x9B05688C2B3E6C1F),
)

Sums: TypeAlias = tuple[int, int]
"""The sums of some lanes, each from 0 to 2^64 - 1."""

_BLOCK_LANES = 1 << 13
"""So many are mixed at once: a few temporaries of 64 KiB stay in the L2 cache."""

_Words: TypeAlias = npt.NDArray[np.uint64]


def digest(data: bytes | Memory) -> bytes:
    """Return the 16-byte digest of row-major bytes."""
    return finish(sums(data), len(data))


def sums(data: bytes | Memory, first_lane: int = 0) -> Sums:
    """Return the sums of the lanes of row-major bytes.

    Args:
        data: the bytes.
        first_lane: position of the first lane.
    """
    num_whole = len(data) // LANE_BYTES
    totals = np.zeros(2, np.uint64)
    if num_whole:
        lanes = np.frombuffer(memoryview(data), "<u8", num_whole)
        for begin in range(0, num_whole, _BLOCK_LANES):
            totals += _sums(lanes[begin : begin + _BLOCK_LANES], first_lane + begin)
    if rest := bytes(memoryview(data)[num_whole * LANE_BYTES :]):
        lane = np.frombuffer(rest.ljust(LANE_BYTES, b"\0"), "<u8")
        totals += _sums(lane, first_lane + num_whole)
    return int(totals[0]), int(totals[1])


def finish(totals: Sums, num_bytes: int) -> bytes:
    """Return the 16-byte digest of the whole that the lanes with these sums are."""
    x, y = mixed(np.array(totals, np.uint64), np.full(2, num_bytes, np.uint64))
    return np.array([x[0], y[1]], "<u8").tobytes()


def mixed(values: _Words, positions: _Words) -> tuple[_Words, _Words]:
    """Return the two words that each lane is mixed into."""
    spread = values.copy()
    for bits in ROTATIONS:
        spread ^= values >> np.uint64(bits)
        spread ^= values << np.uint64(64 - bits)
    keys = positions + np.uint64(1)
    first = spread ^ keys * np.uint64(GAMMAS[0])
    keys *= np.uint64(GAMMAS[1])
    spread += keys
    return _chain(first, MULTIPLIERS[0]), _chain(spread, MULTIPLIERS[1])


def _chain(words: _Words, multipliers: tuple[int, int]) -> _Words:
    words *= np.uint64(multipliers[0])
    words ^= (words >> np.uint64(SHIFTS[0])) ^ (words >> np.uint64(SHIFTS[1]))
    words *= np.uint64(multipliers[1])
    words ^= words >> np.uint64(SHIFTS[1])
    return words


def _sums(lanes: "npt.NDArray[Any]", first_lane: int) -> _Words:
    positions = np.arange(first_lane, first_lane + len(lanes), dtype=np.uint64)
    return np.array([word.sum(dtype=np.uint64) for word in mixed(lanes, positions)])
