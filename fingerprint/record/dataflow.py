"""Which event of the current step produced a tensor."""

import torch

from fpdiff.fingerprint.digest.host import geometry, is_plain
from fpdiff.fingerprint.digest.storages import StorageTable

_Written = tuple[int, int, tuple[object, ...]]  # seq, version, geometry


class Producers:
    """Remembers, for each live storage, the last event that recorded a tensor in it."""

    def __init__(self) -> None:
        """Start with no tensor known."""
        self._storages: StorageTable[_Written] = StorageTable()

    def put(self, tensor: torch.Tensor, seq: int) -> None:
        """Remember that event `seq` recorded the tensor as it is now."""
        if _is_followed(tensor):
            where = (seq, tensor._version, geometry(tensor))
            self._storages.put(tensor.untyped_storage(), where)

    def find(self, tensor: torch.Tensor) -> tuple[int | None, bool]:
        """Return (seq, exact): the last event recorded in the tensor's storage, or None.

        `exact` says that the event's digest is that of the tensor's bytes now: nothing was
        written since (as far as the version counter sees) and the view is the same.
        """
        if not _is_followed(tensor):
            return None, False
        known = self._storages.get(tensor.untyped_storage())
        if known is None:
            return None, False
        seq, version, where = known
        return seq, version == tensor._version and where == geometry(tensor)

    def clear(self) -> None:
        """Forget everything: the graph of a step is complete in itself."""
        self._storages.clear()


def _is_followed(tensor: torch.Tensor) -> bool:
    # Zero-element tensors share the null storage's address and carry nothing.
    if not is_plain(tensor) or tensor.is_inference() or tensor.numel() == 0:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
