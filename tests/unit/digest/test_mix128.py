"""mix128 against its definition, written out once more in plain integers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from strategies import POOL, raw_bytes

from fpdiff.fingerprint.digest.host import Memory, memory
from fpdiff.fingerprint.digest.mix128 import device, reference, vectorised

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # Wanted.

MASK = (1 << 64) - 1
PRIMES = (2, 3, 5, 7, 11, 13)


def root_bits(prime: int) -> int:
    """Return the first 64 fractional bits of a square root, made odd."""
    low, high = 0, prime << 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * middle <= prime << 128 else (low, middle)
    return low & MASK | 1


G0, G1, M00, M01, M10, M11 = map(root_bits, PRIMES)


def mixed(value: int, position: int) -> tuple[int, int]:
    def rotr(word: int, bits: int) -> int:
        return (word >> bits | word << 64 - bits) & MASK

    s = value ^ rotr(value, 26) ^ rotr(value, 51)
    words = []
    for x, first, second in (
        (s ^ (position + 1) * G0 & MASK, M00, M01),
        ((s + (position + 1) * G1) & MASK, M10, M11),
    ):
        x = x * first & MASK
        x = x ^ x >> 13 ^ x >> 32
        x = x * second & MASK
        words.append(x ^ x >> 32)
    return words[0], words[1]


def defined(data: bytes) -> bytes:
    x = y = 0
    for position in range(-(-len(data) // 8)):
        lane = int.from_bytes(data[8 * position : 8 * position + 8].ljust(8, b"\0"), "little")
        words = mixed(lane, position)
        x, y = x + words[0] & MASK, y + words[1] & MASK
    x, y = mixed(x, len(data))[0], mixed(y, len(data))[1]
    return x.to_bytes(8, "little") + y.to_bytes(8, "little")


def words_of(digest: torch.Tensor) -> bytes:
    data: bytes = digest.numpy().tobytes()
    return data


@pytest.mark.parametrize("size", [*range(18), 63, 64, 8 * 8192 - 1, 8 * 8192, 8 * 8192 + 9])
def test_every_form_is_the_definition(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    expected = defined(data)
    assert reference.digest(data) == expected
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    assert words_of(vectorised.digest(tensor)) == expected
    assert reference.digest(memory(tensor, size)) == expected


def test_a_digest_stays_what_it_was() -> None:
    """Runs hold these digests: another constant would be another algorithm."""
    assert reference.digest(b"").hex() == "19070988c8e6d433137e48474d4652e9"
    told = reference.digest(b"the digest of these bytes is on disk")
    assert told.hex() == "e8a588c316c51b18e2a0df994ccdafb5"


@pytest.mark.parametrize("name", POOL)
def test_the_vectorised_form_digests_logical_row_major_bytes(name: str) -> None:
    tensor = POOL[name]()
    version = tensor._version
    words = device.digest(tensor)
    assert words_of(words) == reference.digest(raw_bytes(tensor))
    assert not words.requires_grad and tensor._version == version


def test_chunks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(1000, dtype=torch.int32)[:-1]
    expected = defined(raw_bytes(tensor))
    monkeypatch.setattr(vectorised, "_CHUNK_LANES", {True: 7})
    monkeypatch.setattr(reference, "_BLOCK_LANES", 11)
    assert words_of(vectorised.digest(tensor)) == expected == reference.digest(raw_bytes(tensor))


def test_sums_of_stretches_add_up_in_any_order() -> None:
    data = np.random.default_rng(1).bytes(8 * 100 + 3)
    cuts = [0, 3, 4, 50, 101]
    parts = [reference.sums(data[8 * begin : 8 * end], begin) for begin, end in pairwise(cuts)]
    total = [sum(words) & MASK for words in zip(*reversed(parts), strict=True)]
    assert reference.finish((total[0], total[1]), len(data)) == defined(data)


def test_positions_beyond_32_bits_are_kept_apart() -> None:
    lane = (5).to_bytes(8, "little")
    at = [reference.sums(lane, position) for position in (0, 1 << 31, 1 << 32, 1 << 40)]
    assert at == [mixed(5, position) for position in (0, 1 << 31, 1 << 32, 1 << 40)]
    assert len(set(at)) == 4


def test_mixing_a_lane_has_an_inverse() -> None:
    """So a difference in one lane alone is never missed, in neither word."""

    def unshifted(word: int, *bits: int) -> int:
        found = word
        for _ in range(64):
            shifted = 0
            for by in bits:
                shifted ^= found >> by
            found = word ^ shifted
        return found

    def unspread(word: int) -> int:
        found = word  # The map is of order 64 at most: its 63rd power is its inverse.
        for _ in range(63):
            r26 = (found >> 26 | found << 38) & MASK
            r51 = (found >> 51 | found << 13) & MASK
            found = found ^ r26 ^ r51
        return found

    for value in (0, 1, 1 << 63, 0x3F80_0000_BF80_0000, MASK):
        for position in (0, 7, 1 << 40):
            x, y = mixed(value, position)
            for word, first, second in ((x, M00, M01), (y, M10, M11)):
                word = unshifted(word, 32) * pow(second, -1, 1 << 64) & MASK
                word = unshifted(word, 13, 32) * pow(first, -1, 1 << 64) & MASK
                key = (position + 1) * (G0 if first == M00 else G1) & MASK
                word = word ^ key if first == M00 else word - key & MASK
                assert unspread(word) == value


def test_host_memory_is_digested_in_place() -> None:
    tensor = torch.arange(4, dtype=torch.int64)
    data: Memory = memory(tensor, tensor.nbytes)
    before = reference.digest(data)
    tensor[2] = 9
    assert reference.digest(data) == defined(raw_bytes(tensor)) != before
