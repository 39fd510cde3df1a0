"""The tensors and the other values that an operator is given and returns."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from fpdiff.fingerprint.record.ops.schema import OpSchema

_NOT_DATA = frozenset({"device", "pin_memory", "layout", "dtype", "async_op", "timeout"})
"""Arguments that decide no bit, or that the dtype of the result shows."""

_PLAIN = (int, float, bool, type(None), str)

_HIDDEN = (torch.Generator, torch.ScriptObject, torch.device, torch.layout)

Argument = tuple[str, str, "int | None", torch.Tensor]
"""(argument, slot, index in a list or None, tensor)."""


def split(
    schema: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Argument], list[tuple[str, Any]]]:
    """Return the tensors among an op's arguments, and the other arguments by name."""
    tensors: list[Argument] = []
    others: list[tuple[str, Any]] = []
    given: Iterable[tuple[str, Any]] = zip(schema.arguments, args, strict=False)
    for name, value in chain(given, kwargs.items()) if kwargs else given:
        kind = type(value)
        if kind in _PLAIN:  # First: to ask whether one is hidden takes 0.4 us.
            if name not in _NOT_DATA:
                others.append((name, value))
        elif kind is torch.Tensor or isinstance(value, torch.Tensor):
            tensors.append((name, name, None, value))
        elif isinstance(value, (list, tuple)) and _holds_tensors(value):
            for index, (slot, tensor) in enumerate(_flattened(value, name)):
                tensors.append((name, slot, index, tensor))
        elif name not in _NOT_DATA and not isinstance(value, _HIDDEN):
            others.append((name, value))
    return tensors, others


def _holds_tensors(values: Any) -> bool:
    if values and type(values[0]) is int:  # A shape or dimensions, as lists mostly are.
        return False
    return any(
        isinstance(v, torch.Tensor) or (isinstance(v, (list, tuple)) and _holds_tensors(v))
        for v in values
    )


def _flattened(values: Any, slot: str) -> Iterator[tuple[str, torch.Tensor]]:
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            yield f"{slot}.{index}", value
        elif isinstance(value, (list, tuple)):
            yield from _flattened(value, f"{slot}.{index}")


def results(result: Any, schema: OpSchema) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, slot, value) of what an op returned and did not write into an argument."""
    several = isinstance(result, tuple)
    for number, value in enumerate(result if several else (result,)):
        if number in schema.returns_arguments or value is None:
            continue
        if isinstance(value, (torch.Tensor, int, float, bool, complex)):
            yield number, f"out.{number}", value
        elif isinstance(value, (list, tuple)):
            for slot, tensor in _flattened(value, f"out.{number}"):
                yield number, slot, tensor


def shown(value: Any) -> str:
    """Return a text that is equal for equal plain values and unequal for unequal ones."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.memory_format)):
        return str(value)
    return type(value).__name__
