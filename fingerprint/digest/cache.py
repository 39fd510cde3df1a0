"""Each tensor version is digested once.

A digest is found again by storage, version counter and place in the storage. The version counter
alone does not see every write (`p.data.mul_(..)`, numpy on the tensor's memory, a storage refilled
under a live tensor), so a hit also needs a sample of the tensor's bytes to be what it was. A write
that goes past the counter *and* past the sample is missed until the next counted write: pass
`trust=False` where that matters more than the time.
"""

from collections.abc import Callable

import torch

from fpdiff.fingerprint.digest.algorithms import ALGORITHMS, Algorithm
from fpdiff.fingerprint.digest.host import Memory, OfPlain, PlainView, digest, memory
from fpdiff.fingerprint.digest.staging import Staging
from fpdiff.fingerprint.digest.storages import StorageTable

SMALL_BYTES = 64 << 10
"""Up to this size digesting anew (3 us) is cheaper than looking a digest up."""

SAMPLE_WORDS = 16

_Known = dict[tuple[object, ...], tuple[int, bytes, bytes]]  # where -> version, sample, digest


class DigestCache:
    """Digests tensors, remembering the larger ones for as long as their storages live."""

    def __init__(
        self, algorithm: Algorithm = ALGORITHMS["xxh3-128"], staging: Staging | None = None
    ) -> None:
        """Start with nothing known.

        Args:
            algorithm: how tensors are digested.
            staging: gives placeholders for the digests of a device's tensors.
        """
        self.of_memory = algorithm.of_memory
        self._now = algorithm.of_plain
        self._of_plain = self._now if staging is None else _staged(staging, self._now)
        self._storages: StorageTable[_Known] = StorageTable()

    def digest(
        self,
        tensor: torch.Tensor,
        view: PlainView | None,
        *,
        trust: bool = True,
        remember: bool = True,
    ) -> bytes:
        """Return the 16-byte digest of a tensor, or a placeholder for it, see `digest.staging`.

        Args:
            tensor: any tensor, see `host.digest`.
            view: what `host.look` returns for it.
            trust: a digest that was taken at this version may be returned again.
            remember: the digest may be asked for again.

        Raises:
            Undigestible: see `host.digest`.
        """
        if view is None:
            return digest(tensor, self._of_plain, self._now)
        if view.extent_bytes <= SMALL_BYTES or not view.is_on_host or not view.has_memory:
            return self._of_plain(tensor, view)
        if not remember or tensor.is_inference():  # Which has no version counter.
            return self._of_plain(tensor, view)
        block = memory(tensor, view.extent_bytes)
        return self._once(
            tensor, view.storage, view.where, block, trust, lambda: self._of_plain(tensor, view)
        )

    def digest_at(
        self, tensor: torch.Tensor, where: tuple[object, ...], block: Memory, *, trust: bool
    ) -> bytes:
        """Return what `digest` does, of a row-major tensor on the host with a version counter.

        Args:
            tensor: the tensor.
            where: see `PlainView`.
            block: the tensor's memory.
            trust: as for `digest`.
        """
        if len(block) <= SMALL_BYTES:
            return self.of_memory(block)
        storage = tensor.untyped_storage()
        return self._once(tensor, storage, where, block, trust, lambda: self.of_memory(block))

    def _once(
        self,
        tensor: torch.Tensor,
        storage: torch.UntypedStorage,
        where: tuple[object, ...],
        block: Memory,
        trust: bool,
        take: Callable[[], bytes],
    ) -> bytes:
        known = self._storages.get(storage)
        if known is None:
            known = {}
            self._storages.put(storage, known)
        version, before = tensor._version, known.get(where)
        if trust and before is not None and before[0] == version and before[1] == _sample(block):
            return before[2]
        result = take()
        # Sampled afterwards, when digesting has brought the memory near.
        known[where] = (version, _sample(block), result)
        return result

    def digest_now(self, tensor: torch.Tensor, view: PlainView | None) -> bytes:
        """Return the 16-byte digest of a tensor, taken anew; wait for it if need be.

        Raises:
            Undigestible: see `host.digest`.
        """
        return digest(tensor, self._now) if view is None else self._now(tensor, view)

    def forget(self, view: PlainView) -> None:
        """Forget the digests of a storage: something that no version counts has written there."""
        known = self._storages.get(view.storage)
        if known is not None:
            known.clear()

    def sweep(self) -> None:
        """Forget storages that have been freed; called between steps."""
        self._storages.sweep()


def _staged(staging: Staging, now: OfPlain) -> OfPlain:
    """Return what digests a plain tensor, with a placeholder for what a device digests."""

    def of_plain(tensor: torch.Tensor, view: PlainView) -> bytes:
        if not view.is_on_host and staging.takes(tensor):
            return staging.digest(tensor, view)
        return now(tensor, view)

    return of_plain


def _sample(block: Memory) -> bytes:
    """Return 8-byte words spread over the memory.

    Where the memory is cold each word costs a cache miss, 0.1 us: the sample then costs what
    hashing another 40 KiB would.
    """
    words = memoryview(block).cast("B")[: len(block) & ~7].cast("Q")
    return words[:: len(words) // SAMPLE_WORDS].tobytes()
