from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from fpdiff.fingerprint.record.modules.containers import MAX_DEPTH, arguments, outputs, tensors_in

T = torch.zeros(1)
Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: Any
    loss: Any = None
    unset: Any = field(init=False)


class Opaque:
    """Something that nobody can look into."""


@pytest.mark.parametrize(
    ("value", "slots"),
    [
        (T, ["out.0"]),
        (None, []),
        ((T, T), ["out.0", "out.1"]),
        ([T, None, [T]], ["out.0", "out.2.0"]),
        ({"a": T, "b": {"c": T}, 3: T}, ["out.a", "out.b.c", "out.3"]),
        (OrderedDict(x=T), ["out.x"]),
        (UserDict(x=T), ["out.x"]),
        (Pair(T, (T,)), ["out.0", "out.1.0"]),
        (Output(T), ["out.logits"]),
        (Output((T, T), loss=T), ["out.logits.0", "out.logits.1", "out.loss"]),
        (nn.Parameter(T), ["out.0"]),
    ],
)
def test_tensors_are_found_in_outputs(value: Any, slots: list[str]) -> None:
    found, opaque = outputs(value)
    assert ([slot for slot, _ in found], opaque) == (slots, [])


def test_arguments_are_numbered_or_named() -> None:
    found, opaque = arguments((T, 2, {"x": T}), {"mask": T, "mode": "a", "pair": (T, T)})
    assert [slot for slot, _ in found] == [
        "arg.0",
        "arg.2.x",
        "arg.mask",
        "arg.pair.0",
        "arg.pair.1",
    ]
    assert opaque == []


def test_what_is_not_looked_into_is_named() -> None:
    found, opaque = arguments((Opaque(), {"a": Opaque()}, {T}), {})
    assert found == [] and opaque == ["Opaque", "Opaque", "set"]


@pytest.mark.parametrize(
    "value",
    ["a", b"a", True, 1, 1.5, 1j, None, torch.float32, torch.device("cpu"), T.shape, Output]
    + [nn.Linear(1, 1), slice(1), range(2), torch.Generator(), len, lambda: T],
)
def test_what_holds_no_tensor_is_not_named(value: Any) -> None:
    assert tensors_in(value, "out") == ([], [])


def test_depth_is_limited_and_said() -> None:
    value: Any = T
    for _ in range(MAX_DEPTH):
        value = [value]
    assert tensors_in(value, "out")[0][0][0] == "out" + ".0" * MAX_DEPTH
    assert tensors_in([value], "out") == ([], ["list"])


def test_a_container_that_holds_itself_ends() -> None:
    value: list[Any] = [T]
    value.append(value)
    found, opaque = tensors_in(value, "out")
    assert len(found) == MAX_DEPTH and opaque == ["list"]


def test_a_container_that_refuses_is_one_that_nobody_can_look_into() -> None:
    class Refuses(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("not now")

    assert tensors_in({"a": T, "b": Refuses(x=T)}, "out") == ([("out.a", T)], ["Refuses"])
