"""What is known of ops, as data with its sources; no torch is needed to read it.

memory.json           what ops leave in memory that says nothing
nondeterministic.json ops known to give other bits from equal inputs, and what fixes each
"""

import json
from functools import cache
from importlib import resources
from typing import Any

UNSEEN_LAUNCH = "Triton launch, recorded at the rung kernel"
"""The blind spot of a run that Triton launched kernels in, recorded at a rung above."""


@cache
def load(name: str) -> dict[str, Any]:
    """Return the content of a file of the catalogue, given its stem."""
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def base_name(op: str) -> str:
    """Return an op's name without its overload: `aten.add` for `aten.add.Tensor`."""
    return op.rsplit(".", 1)[0] if op.count(".") > 1 else op


def is_launch(op: str) -> bool:
    """Return whether what events show as an op is a kernel that Triton launched."""
    return op.startswith("triton.") and op.count(".") == 1


@cache
def _nondeterministic() -> dict[str, dict[str, Any]]:
    return {op: entry for entry in load("nondeterministic")["ops"] for op in entry["ops"]}


def nondeterminism(op: str) -> dict[str, Any] | None:
    """Return what is known of an op that may give other bits from equal inputs, else None.

    Its keys: devices (cpu, cuda), why, fix, source.
    """
    return _nondeterministic().get(base_name(op))
