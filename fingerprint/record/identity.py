"""A table keyed by live objects, by identity: an object may define an equality of its own."""

import weakref
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class IdentityTable(Generic[V]):
    """Maps objects to values for as long as the objects live; it keeps none of them alive."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def __len__(self) -> int:
        """Return how many of the objects are alive."""
        return len(self._entries)

    def __contains__(self, one: object) -> bool:
        """Return whether an object has a value."""
        return self.get(one) is not None

    def get(self, one: object) -> V | None:
        """Return the value of an object, or None."""
        entry = self._entries.get(id(one))
        # The reference is asked too: in a cycle an object can be gone before its callback has run.
        return entry[1] if entry is not None and entry[0]() is one else None

    def put(self, one: object, value: V) -> None:
        """Set the value of an object; not None."""
        entries, key = self._entries, id(one)

        def forget(gone: "weakref.ref[Any]") -> None:
            # Another object may have got the id, and the entry, since.
            if (entry := entries.get(key)) is not None and entry[0] is gone:
                del entries[key]

        entries[key] = (weakref.ref(one, forget), value)

    def drop(self, one: object) -> None:
        """Forget an object, if it has a value."""
        if one in self:
            del self._entries[id(one)]

    def clear(self) -> None:
        """Drop every entry."""
        self._entries.clear()
