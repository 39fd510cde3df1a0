"""A tensor that lies where it lay in the step before, as parameters and their moments do.

At the rungs step and layer most events are of such tensors. What was found out about one is kept,
so that one look tells that it still holds: where its bytes are, and the number of its site.
"""

from typing import NamedTuple

import torch

from fpdiff.fingerprint.digest.cache import DigestCache
from fpdiff.fingerprint.digest.host import Memory, look, memory


class _Found(NamedTuple):
    """What was found out about a tensor, which holds as long as it stays there."""

    kind: type
    pointer: int
    dtype: torch.dtype
    shape: torch.Size
    where: tuple[object, ...]
    memory: Memory
    sites: dict[str, int]  # by phase


class Standing:
    """Remembers one tensor's place, and its sites in the phases in which it has an event."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        """Start with nothing known."""
        self._found: _Found | None = None

    def site(self, tensor: torch.Tensor, phase: str) -> int | None:
        """Return the number of the tensor's site in a phase, None unless all is as it was."""
        found = self._found
        return found.sites.get(phase) if found is not None and _is_at(found, tensor) else None

    def digest(self, tensor: torch.Tensor, cache: DigestCache, *, trust: bool) -> bytes:
        """Return the tensor's digest, where `site` has just returned a number."""
        found = self._found
        assert found is not None
        return cache.digest_at(tensor, found.where, found.memory, trust=trust)

    def learn(self, tensor: torch.Tensor, phase: str, site: int) -> None:
        """Remember where a tensor is, and the number of its site in a phase."""
        found, self._found = self._found, None
        if not tensor.is_cpu or tensor.is_complex() or tensor.is_inference():
            return
        view = look(tensor)
        if view is None or not (view.is_row_major and view.has_memory and view.extent_bytes):
            return
        sites = {phase: site}
        if found is not None and _is_at(found, tensor):
            sites = found.sites | sites
        self._found = _Found(
            type(tensor),
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            view.where,
            memory(tensor, view.extent_bytes),
            sites,
        )


def _is_at(found: _Found, tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is found.kind
        and tensor.data_ptr() == found.pointer
        and tensor.dtype is found.dtype
        and tensor.shape == found.shape
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )
