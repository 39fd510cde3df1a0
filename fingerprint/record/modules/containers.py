"""Tensors inside the arguments and outputs of modules."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAX_DEPTH = 6
_NO_TENSORS = (
    str,
    bytes,
    bool,
    int,
    float,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    torch.nn.Module,
    torch.Generator,
    type,
    slice,
    range,
)

Slots = list[tuple[str, torch.Tensor]]
"""Tensors with their slots: `out.0`, `arg.1.hidden`."""


def tensors_in(value: Any, slot: str) -> tuple[Slots, list[str]]:
    """Return the tensors in a value, and the names of types that were not looked into.

    Tuples, lists, mappings and dataclasses are looked into, to a depth of 6.

    Args:
        value: anything.
        slot: name of the value's own slot; a container's entries get `slot.key`.
    """
    found: Slots = []
    opaque: list[str] = []
    _collect(value, slot, found, opaque, 0)
    return found, opaque


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Slots, list[str]]:
    """Return the tensors in a call's arguments as `arg.0`, `arg.name`, see `tensors_in`."""
    found: Slots = []
    opaque: list[str] = []
    for index, value in enumerate(args):
        _collect(value, f"arg.{index}", found, opaque, 0)
    for name, value in kwargs.items():
        _collect(value, f"arg.{name}", found, opaque, 0)
    return found, opaque


def outputs(value: Any) -> tuple[Slots, list[str]]:
    """Return the tensors in a module's output as `out.0`, `out.logits`, see `tensors_in`."""
    if isinstance(value, torch.Tensor):
        return [("out.0", value)], []
    return tensors_in(value, "out")


def _collect(value: Any, slot: str, found: Slots, opaque: list[str], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found.append((slot, value))
    elif isinstance(value, _NO_TENSORS):
        return
    elif depth >= MAX_DEPTH:
        opaque.append(type(value).__name__)
    else:
        try:
            entries = _entries(value)
            named = [(f"{slot}.{key}", entry) for key, entry in entries or ()]
        except Exception:  # noqa: BLE001  # A container of the program's own may refuse.
            opaque.append(type(value).__name__)
            return
        if entries is None and not callable(value):
            opaque.append(type(value).__name__)
        for name, entry in named:
            _collect(entry, name, found, opaque, depth + 1)


def _entries(value: Any) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(value, (tuple, list)):
        return iter(enumerate(value))
    if isinstance(value, Mapping):
        return iter(value.items())
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return ((name, getattr(value, name, None)) for name in names)
    return None
