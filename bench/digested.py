"""How many bytes a recorder digests, and how long it takes to digest as many once.

The second is the physical limit of recording: no recorder that looks at these bytes takes less.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fpdiff.fingerprint.digest.algorithms import ALGORITHMS, Algorithm
from fpdiff.fingerprint.digest.host import Memory, PlainView, memory
from fpdiff.store.schema import DIGEST_ALGORITHM

STRETCH_BYTES = 256 << 20
"""More than a cache holds, as a large model's tensors are."""


class Digested:
    """What has been digested so far.

    Attributes:
        once_bytes: of memory when it held what it had not held before.
        again_bytes: of memory that was digested before and still held the same.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.once_bytes = 0
        self.again_bytes = 0
        self._seen: set[tuple[int, int, bytes]] = set()

    def add(self, address: int, size_bytes: int, digest: bytes) -> bytes:
        """Count one digest, and return it."""
        what = (address, size_bytes, digest)
        if what in self._seen:
            self.again_bytes += size_bytes
        else:
            self._seen.add(what)
            self.once_bytes += size_bytes
        return digest


@contextmanager
def counting() -> Iterator[Digested]:
    """Count what recorders that begin inside the block digest of tensors.

    A digest that is remembered is not counted. Counting takes time: no timing of such a block.
    """
    counted = Digested()
    own = ALGORITHMS[DIGEST_ALGORITHM]

    def of_memory(data: Memory) -> bytes:
        return counted.add(ctypes.addressof(data), len(data), own.of_memory(data))

    def of_plain(tensor: torch.Tensor, view: PlainView) -> bytes:
        return counted.add(tensor.data_ptr(), tensor.nbytes, own.of_plain(tensor, view))

    ALGORITHMS[DIGEST_ALGORITHM] = Algorithm(of_memory, of_plain)
    try:
        yield counted
    finally:
        ALGORITHMS[DIGEST_ALGORITHM] = own


class Limit:
    """Digests as many bytes as a rung does in a step, once each, and nothing else."""

    def __init__(self, max_bytes: int) -> None:
        """Fill memory that lies as tensors do; of a large step, a stretch for all others."""
        stretch_bytes = min(max_bytes, STRETCH_BYTES)
        self._stretch = torch.empty(stretch_bytes, dtype=torch.uint8).random_()
        self._digest = ALGORITHMS[DIGEST_ALGORITHM].of_memory

    def seconds(self, size_bytes: int) -> float:
        """Return how long that takes now, at best."""
        return min(self._once(size_bytes) for _ in range(3))

    def _once(self, size_bytes: int) -> float:
        whole, rest = divmod(size_bytes, len(self._stretch))
        begin = time.perf_counter()
        for _ in range(whole):
            self._digest(memory(self._stretch, len(self._stretch)))
        self._digest(memory(self._stretch, rest))
        return time.perf_counter() - begin
