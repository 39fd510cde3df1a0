"""Puts functions of the recorder's around others of torch or Triton, now or when they are imported.

A module is the program's to import. Until it does, there is a finder that looks at the names of
what is imported, and nothing else.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Given a function, returns the one to put in its place."""

Places = Mapping[str, Sequence[tuple[str, str, Around]]]
"""By name of a module: a class in it or "" for the module, an attribute, what to put around."""


def wrap(places: Places) -> Callable[[], None]:
    """Put functions around others, those that exist; return the function that takes them off.

    Args:
        places: where; modules that are not imported yet are waited for.
    """
    wrapped: list[tuple[Any, str, Any, Any]] = []

    def imported(module: Any) -> None:
        for kind, name, around in places[module.__name__]:
            holder = getattr(module, kind, None) if kind else module
            original = vars(holder).get(name) if holder is not None else None
            if original is not None:
                ours = around(original)
                setattr(holder, name, ours)
                wrapped.append((holder, name, original, ours))

    finder = _Finder(frozenset(places), imported)

    def end() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for holder, name, original, ours in wrapped:
            if vars(holder).get(name) is ours:  # Else somebody has wrapped ours, which is idle now.
                setattr(holder, name, original)

    try:
        sys.meta_path.insert(0, finder)
        for module in filter(None, map(sys.modules.get, places)):
            imported(module)
    except BaseException:
        end()
        raise
    return end


class _Finder:
    """Finds some modules as the other finders would, and tells when one has been imported."""

    def __init__(self, names: frozenset[str], imported: Callable[[Any], None]) -> None:
        self._names = names
        self._imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # Before Python 3.12 a finder may lack it.
            if finder is self or find is None:
                continue
            if (spec := find(name, path, target)) is not None:
                if spec.loader is not None:
                    self._tell_after(spec.loader)
                return spec
        return None

    def _tell_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            if self in sys.meta_path:
                self._imported(module)

        loader.exec_module = exec_module
