"""A table keyed by storages that are alive, which a reused address cannot fool.

A key is the address of the storage's C++ object, not of its data. The table holds a *weak*
reference for each entry: the storage's memory is freed as without the table, but the small C++
object stays, so no other storage can get its address while the entry exists.
"""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

import torch

T = TypeVar("T")


class StorageTable(Generic[T]):
    """Maps live storages to values; entries of freed storages go away in `sweep`."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[int, tuple[int, T]] = {}

    def __len__(self) -> int:
        """Return the number of entries, those of freed storages included until the next sweep."""
        return len(self._entries)

    def get(self, storage: torch.UntypedStorage) -> T | None:
        """Return the value of a storage, or None."""
        entry = self._entries.get(storage._cdata)
        return None if entry is None else entry[1]

    def put(self, storage: torch.UntypedStorage, value: T) -> None:
        """Set the value of a storage."""
        key = storage._cdata
        entry = self._entries.get(key)
        weak = cast(int, storage._weak_ref()) if entry is None else entry[0]
        self._entries[key] = (weak, value)

    def values(self) -> Iterator[T]:
        """Yield every value, those of freed storages included until the next sweep."""
        return (value for _, value in self._entries.values())

    def sweep(self) -> None:
        """Drop the entries of storages that have been freed."""
        freed = [k for k, (weak, _) in self._entries.items() if _expired(weak)]
        for key in freed:
            _free(self._entries.pop(key)[0])

    def clear(self) -> None:
        """Drop every entry."""
        while self._entries:
            _free(self._entries.popitem()[1][0])

    def __del__(self) -> None:
        """Release the weak references."""
        self.clear()


_expired: Callable[[int], bool] = cast(Any, torch.UntypedStorage)._expired
_free: Callable[[int], None] = cast(Any, torch.UntypedStorage)._free_weak_ref
