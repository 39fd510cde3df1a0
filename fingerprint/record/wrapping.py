"""Wraps methods of modules that are the program's to import, now or whenever it imports them.

Until it does, there is a finder that looks at the names of what is imported, and nothing else.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Given a method, returns what is to stand in its place."""


def wrap_methods(methods: Mapping[str, list[tuple[str, str, Around]]]) -> Callable[[], None]:
    """Wrap methods; return the function that puts them back.

    Args:
        methods: by module: class, method, and what to put around it. What a version of the module
            lacks is left out.
    """
    wrapped: list[tuple[Any, str, Any, Any]] = []

    def wrap(module: Any) -> None:
        for holder, method, around in methods[module.__name__]:
            kind = getattr(module, holder, None)
            original = vars(kind).get(method) if kind is not None else None
            if original is not None:
                ours = around(original)
                setattr(kind, method, ours)
                wrapped.append((kind, method, original, ours))

    finder = _Finder(methods, wrap)
    sys.meta_path.insert(0, finder)
    for name in methods:
        if (module := sys.modules.get(name)) is not None:
            wrap(module)

    def end() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for kind, method, original, ours in wrapped:
            if vars(kind).get(method) is ours:  # Else somebody has wrapped ours, which is idle now.
                setattr(kind, method, original)

    return end


class _Finder:
    """Finds those modules as the other finders would, and tells when one has been imported."""

    def __init__(self, names: Collection[str], imported: Callable[[Any], None]) -> None:
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
