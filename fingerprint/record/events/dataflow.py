"""Which event of the rungs step and layer recorded a tensor last; at rung op see `writers`."""

import torch

from fpdiff.fingerprint.digest.host import PlainView
from fpdiff.fingerprint.digest.storages import StorageTable

_Written = tuple[int, int, tuple[object, ...]]  # seq, version, place in the storage


class Producers:
    """Remembers, for each live storage, the last event that recorded a tensor in it."""

    def __init__(self) -> None:
        """Start with no tensor known."""
        self._storages: StorageTable[_Written] = StorageTable()

    def put(self, tensor: torch.Tensor, view: PlainView | None, seq: int) -> None:
        """Remember that event `seq` recorded the tensor as it is now.

        Args:
            tensor: the tensor.
            view: what `host.look` returns for it; others than plain tensors are not followed.
            seq: the event.
        """
        # Zero-element tensors carry nothing; inference tensors have no version counter.
        if view is not None and view.extent_bytes and not tensor.is_inference():
            self._storages.put(view.storage, (seq, tensor._version, view.where))

    def find(self, tensor: torch.Tensor, view: PlainView | None) -> tuple[int | None, bool]:
        """Return (seq, exact): the last event recorded in the tensor's storage, or None.

        `exact` says that the event's digest is that of the tensor's bytes now: nothing was
        written since (as far as the version counter sees) and the view is the same.
        """
        if view is None or not view.extent_bytes or tensor.is_inference():
            return None, False
        known = self._storages.get(view.storage)
        if known is None:
            return None, False
        seq, version, where = known
        return seq, version == tensor._version and where == view.where

    def clear(self) -> None:
        """Forget everything: the graph of a step is complete in itself."""
        self._storages.clear()
