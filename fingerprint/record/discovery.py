"""Finds optimizers, gradient scalers and modules that no hook has shown.

State counts from the start of a step, but an optimizer shows itself by a hook only when it steps,
a scaler never, and an averaged copy of a model (EMA) may not be called for a long time. They are
looked for among the objects that Python's collector knows, at the start of the first, second,
tenth, hundredth ... step that a process records, so that the cost (some tenths of a second for a
million objects) fades.

Looking must not touch: types are read with `type()`, since asking an arbitrary object for its
class can run its code.
"""

import gc
import weakref
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from fpdiff.fingerprint.record.names import Names

T = TypeVar("T")

_LOOKS = {1, 2, *(10**power for power in range(1, 10))}
_SOUGHT = (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)


class _Sought(dict[type, "type | None"]):
    """Maps a type to the sought type that it derives from, or None; asks once for each type."""

    def __missing__(self, kind: type) -> "type | None":
        sought = next((base for base in _SOUGHT if issubclass(kind, base)), None)
        self[kind] = sought
        return sought


class Discovery:
    """Remembers what was found, weakly."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._stepped: dict[int, int] = {}  # by number of the optimizer, in which step
        self._scalers: list[weakref.ref[torch.amp.GradScaler]] = []
        self._looks = 0

    def optimizers(self, since: int) -> list[tuple[int, torch.optim.Optimizer]]:
        """Return (number, optimizer) of those in use, in a fixed order.

        One that has stepped, but not since that step, is not in use: whether it still exists may
        hang on when Python's collector last ran, which is no property of the program.
        """
        return [
            (number, optimizer)
            for number, ref in enumerate(self._optimizers)
            if self._stepped.get(number, since) >= since and (optimizer := ref()) is not None
        ]

    def number_of(self, optimizer: torch.optim.Optimizer) -> int:
        """Return the number of an optimizer that has been found."""
        return next(n for n, ref in enumerate(self._optimizers) if ref() is optimizer)

    def scalers(self) -> list[torch.amp.GradScaler]:
        """Return the enabled gradient scalers that are alive."""
        return [scaler for scaler in _alive(self._scalers) if scaler.is_enabled()]

    def note_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Note an optimizer that a hook has shown to step in a step."""
        _add(self._optimizers, [optimizer])
        self._stepped[self.number_of(optimizer)] = step

    def look(self, names: Names) -> None:
        """Look if it is time to; adopts copies of known roots, and what optimizers train."""
        self._looks += 1
        if self._looks not in _LOOKS:
            return
        found: dict[type, list[Any]] = {kind: [] for kind in _SOUGHT}
        sought = _Sought()
        # What is no longer reachable but not yet collected is there in one run and gone in another.
        gc.collect()
        for one in gc.get_objects():
            kind = sought[type(one)]
            if kind is not None:
                found[kind].append(one)
        modules = found[nn.Module]
        # A wrapper (accelerate's, say) forwards to an optimizer that is found itself.
        optimizers = [o for o in found[torch.optim.Optimizer] if "param_groups" in o.__dict__]
        _adopt_optimized(modules, optimizers, names)
        _adopt_copies(modules, names)
        order = _parameter_order(names)
        _add(self._optimizers, sorted(optimizers, key=lambda o: _first_parameter(o, order)))
        _add(self._scalers, found[torch.amp.GradScaler])


def _adopt_copies(modules: list[nn.Module], names: Names) -> None:
    """Name the modules that are, or hold, another instance of a root's class."""
    classes = {type(root) for root in names.roots() if any(True for _ in root.parameters())}
    classes |= {type(m) for r in names.roots() if names.is_wrapper(r) for m in r.children()}
    copies = [m for m in modules if any(type(part) in classes for part in m.modules())]
    if not names.has_main():  # A frozen teacher ran first: its trainable twin is no copy.
        copies = [m for m in copies if not any(p.requires_grad for p in m.parameters())]
    _adopt(copies, names, is_copy=True)


def _adopt_optimized(
    modules: list[nn.Module], optimizers: list[torch.optim.Optimizer], names: Names
) -> None:
    """Name the modules that an optimizer trains and that have not been called yet."""
    known = _parameter_order(names)
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    unknown = {id(p) for group in groups for p in group["params"]} - known.keys()
    if unknown:
        owners = [m for m in modules if any(id(p) in unknown for p in m.parameters())]
        _adopt(owners, names, is_copy=False)


def _adopt(candidates: list[nn.Module], names: Names, *, is_copy: bool) -> None:
    """Name the outermost of some modules, unless they share a part with a root."""
    inner = {id(part) for m in candidates for part in m.modules() if part is not m}
    own = {id(part) for root in names.roots() for part in root.modules()}
    for module in candidates:
        parts = [id(part) for part in module.modules()]
        if id(module) not in inner and not own.intersection(parts):
            names.adopt(module, is_copy=is_copy)


def _parameter_order(names: Names) -> dict[int, int]:
    order: dict[int, int] = {}
    for root in names.roots():
        for parameter in root.parameters():
            order.setdefault(id(parameter), len(order))
    return order


def _first_parameter(optimizer: torch.optim.Optimizer, order: dict[int, int]) -> int:
    ids = (id(p) for group in optimizer.param_groups for p in group["params"])
    return min((order[i] for i in ids if i in order), default=len(order))


def _alive(refs: Iterable["weakref.ref[T]"]) -> list[T]:
    return [found for ref in refs if (found := ref()) is not None]


def _add(refs: list["weakref.ref[T]"], found: Iterable[T]) -> None:
    known = {id(one) for one in _alive(refs)}
    refs.extend(weakref.ref(one) for one in found if id(one) not in known)
