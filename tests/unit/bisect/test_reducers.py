"""What a reducer of gradients does otherwise in one run: one finding, told as its collective."""

from pathlib import Path

import pytest
from synthetic_runs import Ev, ev, verdict_of, write_steps

from fpdiff.fingerprint.bisect.verdict import Origin

REDUCE = "c10d.allreduce_.default"
MULTIPLY, COPY = "aten.mul.out", "aten.copy_.default"


def at(parameter: str, op: str) -> Ev:
    """Return the event of what a reducer does at a parameter, in the backward."""
    what = {"phase": "backward", "module_class": "", "op": op, "reads": [f"grad {parameter}"]}
    return ev(f"{op} {parameter}", "written", parameter, "self", value=(op, parameter), **what)


def reduced(name: str, *reads: str, dtype: str = "float32", shape: tuple[int, ...] = (8,)) -> Ev:
    what = {"phase": "backward", "module_class": "", "op": REDUCE, "members": "0,1"}
    return ev(name, "sent", "", "tensors.0", dtype=dtype, shape=shape, reads=[*reads], **what)


def step(op: str, *collectives: Ev, parameters: str = "ab") -> list[Ev]:
    """Return a step in which a reducer does something at each parameter, and then exchanges."""
    events = [
        ev(f"grad {p}", "gradient", p, "grad.out.0", phase="backward", value=p) for p in parameters
    ]
    events += [at(p, op) for p in parameters]
    return [*events, *collectives]


def origins(path: Path, a: list[Ev], b: list[Ev]) -> list[Origin]:
    runs = [write_steps(path / name, [events], level="op") for name, events in (("a", a), ("b", b))]
    return verdict_of(*runs).origins


FULL = reduced("full", f"{MULTIPLY} a", f"{MULTIPLY} b")
HALF = reduced("half", f"{COPY} a", f"{COPY} b", dtype="float16")
COPIED = reduced("copied", f"{COPY} a", f"{COPY} b")
USED = reduced("used", dtype="int32", shape=(2,))
PART = reduced("part", f"{MULTIPLY} a", shape=(4,))


@pytest.mark.parametrize(
    ("a", "b", "class_", "dtypes"),
    [
        # A communication hook: another copy at each parameter, and another dtype in the collective.
        (step(MULTIPLY, FULL), step(COPY, HALF), "metadata", ("float32", "float16")),
        # Another wrapper: each run does what the other does not, and one has a collective more.
        (step(MULTIPLY, FULL), step(COPY, COPIED, USED), "structure", (None, "int32")),
        # Other buckets.
        (step(MULTIPLY, FULL), step(MULTIPLY, PART), "metadata", ("float32", "float32")),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_reducer_does_otherwise_is_one_finding(
    tmp_path: Path,
    a: list[Ev],
    b: list[Ev],
    class_: str,
    dtypes: tuple[str | None, str | None],
    swapped: bool,
) -> None:
    [origin] = origins(tmp_path, *((b, a) if swapped else (a, b)))
    found = tuple(side and side["dtype"] for side in (origin.a, origin.b))
    assert (origin.op, origin.class_) == (REDUCE, class_)
    assert found == (dtypes[::-1] if swapped else dtypes)
    assert "not recorded" not in origin.strength and "is recorded" not in origin.strength
    assert origin.hint is not None and "how the model is wrapped" in origin.hint


def test_what_differs_at_a_parameter_alone_is_told_there(tmp_path: Path) -> None:
    a, b = step(MULTIPLY, FULL), step(COPY, COPIED)
    assert {o.op for o in origins(tmp_path, a, b)} == {MULTIPLY, COPY}


def test_what_a_module_does_otherwise_is_told_beside_it(tmp_path: Path) -> None:
    more = ev("more", "result", "c", phase="backward", op="aten.sum.default")
    a, b = step(MULTIPLY, FULL), [more, *step(COPY, HALF)]
    assert [(o.op, o.class_) for o in origins(tmp_path, a, b)] == [
        ("aten.sum.default", "structure"),
        (REDUCE, "metadata"),
    ]
