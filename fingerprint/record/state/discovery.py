"""Finds optimizers, gradient scalers and modules that no hook has shown.

State counts from the start of a step, but an optimizer shows itself by a hook only when it steps,
a scaler never, and an averaged copy of a model (EMA) may not be called for a long time. They are
looked for among the objects that Python's collector knows, at the start of the first, second,
tenth, hundredth ... step that a process records, so that the cost fades: 0.05 s where torch alone
is loaded, and as much again, and the collector's 0.1 s, where something new is found. So does a
step before which a model was made, a few times at most. Once more in the first step, if an
optimizer steps there that had not been made when a model was first called, and for the optimizer of
parameters that compiled code has begun to write, in which no hook fires.

Looking must not touch: types are read with `type()`, since asking an arbitrary object for its
class can run its code.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any, TypeVar

import torch
from torch import nn

from fpdiff.fingerprint.record.identity import IdentityTable
from fpdiff.fingerprint.record.modules.names import Names

T = TypeVar("T")

_MAX_LATE_LOOKS = 10
"""So many times a model that was made is looked for; some programs make one in each step."""

_LOOKS = {1, 2, *(10**power for power in range(1, 10))}
_SOUGHT = (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)


class Discovery:
    """Remembers what was found, weakly."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._stepped: dict[int, int] = {}  # by number of the optimizer, in which step
        self._scalers: list[weakref.ref[torch.amp.GradScaler]] = []
        self._looks = 0
        self._has_made = False
        self._late_looks = 0
        self._seen: IdentityTable[bool] = IdentityTable()
        self._sought_for: IdentityTable[bool] = IdentityTable()  # parameters, for their optimizers
        self._num_roots = 0

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

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer has been found or shown."""
        return any(ref() is optimizer for ref in self._optimizers)

    def has_looked_once(self) -> bool:
        """Return whether the first step has begun, and no other."""
        return self._looks == 1

    def look(self, names: Names) -> None:
        """Look if it is time to; see `look_now`."""
        self._looks += 1
        is_late = self._has_made and self._late_looks < _MAX_LATE_LOOKS
        if self._looks in _LOOKS:
            self.look_now(names)
        elif is_late:
            self._late_looks += 1
            self.look_now(names)
        self._has_made = False

    def note_parameter(self, module: nn.Module, name: str, parameter: object) -> None:
        """Note that some module is being made; torch calls it for each parameter that one gets."""
        self._has_made = True

    def watch_copies(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return the method that makes a module of another's state, a copy say, noted."""

        @functools.wraps(original)
        def setstate(module: nn.Module, state: Any) -> None:
            original(module, state)
            self._has_made = True

        return setstate

    def look_now(self, names: Names) -> None:
        """Look; adopts copies of known roots, and what optimizers train."""
        found = _sought_objects()
        if not self._has_seen(found) or names.num_met() != self._num_roots:
            # What is no longer reachable but not yet collected is there in one run and gone in
            # another.
            del found
            gc.collect()
            found = _sought_objects()
        for one in found:
            self._seen.put(one, True)
        self._num_roots = names.num_met()
        modules: list[nn.Module] = _instances(found, nn.Module)
        optimizers = _optimizers_among(found)
        _adopt_optimized(modules, optimizers, names)
        _adopt_copies(modules, names)
        order = _parameter_order(names)
        _add(self._optimizers, sorted(optimizers, key=lambda o: _first_parameter(o, order)))
        _add(self._scalers, _instances(found, torch.amp.GradScaler))

    def owners(self, written: list[torch.Tensor], names: Names) -> list[torch.optim.Optimizer]:
        """Return the optimizers that train some of the tensors, which compiled code writes.

        Where none is known, one is looked for: once for a parameter, since other code may write it.
        """
        ids = set(map(id, written))
        known = [optimizer for _, optimizer in self.optimizers(since=0) if _trains(optimizer, ids)]
        news = [t for t in written if t.is_leaf and t.requires_grad and t not in self._sought_for]
        if known or not news:
            return known
        for tensor in news:
            self._sought_for.put(tensor, True)
        gc.collect()  # As in `look_now`.
        found = _optimizers_among(_sought_objects())
        order = _parameter_order(names)
        owners = [optimizer for optimizer in found if _trains(optimizer, ids)]
        return sorted(owners, key=lambda o: _first_parameter(o, order))

    def _has_seen(self, found: list[Any]) -> bool:
        """Return whether the last look found all of these."""
        return all(one in self._seen for one in found)


def _sought_objects() -> list[Any]:
    """Return the sought objects among all that the collector knows.

    There may be millions: what is done for each of them is done without a step of Python.
    """
    everything = gc.get_objects()
    types = {kind for kind in set(map(type, everything)) if issubclass(kind, _SOUGHT)}
    return list(compress(everything, map(types.__contains__, map(type, everything))))


def _instances(found: list[Any], kind: type[T]) -> list[T]:
    return [one for one in found if issubclass(type(one), kind)]


def _optimizers_among(found: list[Any]) -> list[torch.optim.Optimizer]:
    every: list[torch.optim.Optimizer] = _instances(found, torch.optim.Optimizer)
    # A wrapper (accelerate's, say) forwards to an optimizer that is found itself.
    return [optimizer for optimizer in every if "param_groups" in optimizer.__dict__]


def _trains(optimizer: torch.optim.Optimizer, ids: set[int]) -> bool:
    return any(id(p) in ids for group in optimizer.param_groups for p in group["params"])


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
    outermost = [
        module
        for module in candidates
        if id(module) not in inner and not own.intersection(map(id, module.modules()))
    ]
    for module in sorted(outermost, key=_looks_like):
        names.adopt(module, is_copy=is_copy)


def _looks_like(module: nn.Module) -> tuple[str, int, int]:
    """Return what tells modules apart in every run alike.

    The collector knows them in an order that hangs on when it last ran.
    """
    parameters = list(module.parameters())
    writes = sum(p._version for p in parameters if not p.is_inference())
    return f"{type(module).__module__}.{type(module).__qualname__}", len(parameters), writes


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
