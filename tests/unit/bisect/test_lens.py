"""What both runs recorded, when they were recorded differently."""

from typing import Any

import pytest

from fpdiff.fingerprint.bisect.lens import Lens


def site(
    kind: str, module: str = "", slot: str = "out.0", phase: str = "forward"
) -> dict[str, Any]:
    return {"kind": kind, "module": module, "slot": slot, "phase": phase, "op": None}


SHOWN = {
    "parameter": (site("parameter", "l0", phase="init"), True, True),
    "generator at step start": (site("generator", phase="init"), True, True),
    "draw of a module": (site("generator", "l0"), False, False),
    "batch": (site("input", slot="arg.0"), True, True),
    "tensor of a module": (site("input", "l0", slot="attn.arg.0"), False, False),
    "output of a wanted module": (site("output", "l1"), False, True),
    "output of another": (site("output", "l0"), False, False),
    "gradient of a wanted module": (site("gradient", "l1", phase="backward"), False, True),
    "own gradient": (site("local_gradient", "l0", phase="backward"), True, True),
    "loss": (site("loss"), True, True),
    "rewrite": (site("rewrite", "l1"), False, False),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown(name: str) -> None:
    row, at_step, in_window = SHOWN[name]
    assert Lens(None, ()).shows(row) is True
    assert Lens("step", ()).shows(row) is at_step
    assert Lens(None, ("l1",)).shows(row) is in_window
    assert Lens(None, ("l1", "l")).shows(row) is in_window


def test_only_a_lens_that_hides_nothing_is_clear() -> None:
    assert Lens(None, ()).is_clear
    assert not Lens("step", ()).is_clear
    assert not Lens(None, ("l1",)).is_clear


@pytest.mark.parametrize(
    ("kind", "op", "at_op"),
    [
        ("result", "aten.add.Tensor", True),
        ("written", "triton.scale", False),
        ("arguments", "triton.scale", False),
        ("input", "aten.add.Tensor", False),
        ("uninitialised", "aten.add.Tensor", False),
        ("result", "triton.scale.default", True),
    ],
)
def test_what_rungs_op_and_kernel_have_in_common(kind: str, op: str, at_op: bool) -> None:
    row = {**site(kind), "op": op}
    assert Lens(None, ()).shows(row)
    assert Lens("op", ()).shows(row) is at_op
    assert not Lens("layer", ()).shows(row)
    assert Lens("op", ()).shows({**row, "op": None})
