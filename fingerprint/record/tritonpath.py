"""Where Triton launches a kernel, and how the recorder gets there.

Compiled or interpreted, every launch ends in the method `run` of what `triton.jit` has made: a
`JITFunction` or an `InterpretedFunction`. Autotuners and heuristics call it too, with the constants
that they chose. So `run` is wrapped on these two classes: that shows the arguments by name, before
and after, for kernels made earlier and later alike, and is undone by putting it back. Triton's own
launch hooks would not do: the interpreter does not fire them, and they are not given the arguments.
The hooks that a kernel can be given fire before it only, and would stay in the program's objects.

Triton is the program's to import. Until it does, there is a finder that looks at the names of what
is imported, and nothing else.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from fpdiff.fingerprint.record.kernels import KernelRecorder

_Wrap = Callable[[KernelRecorder, Callable[..., Any]], Callable[..., Any]]


def watch(kernels: KernelRecorder) -> Callable[[], None]:
    """Show a recorder every launch from now on; return the function that ends it."""
    wrapped: list[tuple[Any, str, Any, Any]] = []

    def wrap(module: Any) -> None:
        for holder, method, around in _METHODS[module.__name__]:
            kind = getattr(module, holder, None)
            original = vars(kind).get(method) if kind is not None else None
            if original is not None:
                ours = around(kernels, original)
                setattr(kind, method, ours)
                wrapped.append((kind, method, original, ours))

    finder = _Finder(wrap)
    sys.meta_path.insert(0, finder)
    for name in _METHODS:
        if (module := sys.modules.get(name)) is not None:
            wrap(module)

    def end() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for kind, method, original, ours in wrapped:
            if vars(kind).get(method) is ours:  # Else somebody has wrapped ours, which is idle now.
                setattr(kind, method, original)

    return end


def _run(kernels: KernelRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel's `run` that is recorded."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kernels.launch(original, self, args, kwargs)

    return run


def _try(kernels: KernelRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an autotuner's trial of one configuration that is kept out of the record."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kernels.tune(original, self, args, kwargs)

    return run


_METHODS: dict[str, list[tuple[str, str, _Wrap]]] = {
    "triton.runtime.jit": [("JITFunction", "run", _run)],
    "triton.runtime.interpreter": [("InterpretedFunction", "run", _run)],
    "triton.runtime.autotuner": [("Autotuner", "_bench", _try)],
}
"""By module: class, method, and what to put around it."""


class _Finder:
    """Finds those modules as the other finders would, and tells when one has been imported."""

    def __init__(self, imported: Callable[[Any], None]) -> None:
        self._imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _METHODS:
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
