"""Pairing the calls of operators where one run makes others."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Ev, ev, verdict_of, write_steps

from fpdiff.fingerprint.bisect import calls
from fpdiff.fingerprint.bisect.align import align
from fpdiff.fingerprint.bisect.arm import Arm, Keys, Sites
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.store.run import Run

LETTERS = {"m": "aten.mul.Tensor", "s": "aten.sum.default", "t": "aten.tanh.default"}


def op(text: str, module: str = "", **changes: Any) -> Ev:
    """Return the event of a call: an operator's letter, a size, and what tells its value."""
    phase = "forward" if module else "other"
    what = {"op": LETTERS[text[0]], "shape": (int(text[1]),), "value": text[2:]}
    return ev(text, "result", module, phase=phase, **(what | changes))


def pairs(tmp_path: Path, a: list[Ev], b: list[Ev]) -> str:
    """Return the names of paired events, joined, and - for what an event lacks."""
    keys, arms = Keys(), []
    for name, events in (("a", a), ("b", b)):
        record = Run.open(write_steps(tmp_path / name, [events], level="op")).ranks[0]
        arms.append(Arm(record, 0, Sites(record, keys, Lens(None, ()))))
    rows = align(*arms)
    indices = zip(rows.index_a.tolist(), rows.index_b.tolist(), strict=True)
    return " ".join(
        f"{a[i].name if i >= 0 else '-'}:{b[j].name if j >= 0 else '-'}" for i, j in indices
    )


@pytest.mark.parametrize("module", ["", "m"])
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # One more before: of another shape, of another value.
        ("s8 s4", "s2 s8 s4", "-:s2 s8:s8 s4:s4"),
        ("s1a s1b", "s1x s1a s1b", "-:s1x s1a:s1a s1b:s1b"),
        ("s1a s1b", "s1b", "s1a:- s1b:s1b"),
        # The calls after it differ in value too: their shapes and neighbours tell.
        ("m4a s1a", "s1x m4b s1b", "-:s1x m4a:m4b s1a:s1b"),
        ("m4a s1a", "m2x m4b s1b", "-:m2x m4a:m4b s1a:s1b"),
        # Between calls that are known, one of the same operator is the same in another shape.
        ("m4a t4a m4b s1b", "s1x m4a t4a m8c s1b", "-:s1x m4a:m4a t4a:t4a m4b:m8c s1b:s1b"),
        # Equal ones in another order have moved.
        ("m4a s1a", "s1a t1x m4a", "m4a:m4a s1a:s1a -:t1x"),
        # Equal sequences of operators pair by position, whatever their values.
        ("s1a s1b", "s1b s1a", "s1a:s1b s1b:s1a"),
        ("s1a m4b s1c", "s1c m4d s1e", "s1a:s1c m4b:m4d s1c:s1e"),
    ],
)
def test_calls_that_are_the_same(
    tmp_path: Path, a: str, b: str, expected: str, module: str
) -> None:
    ops_a, ops_b = ([op(text, module) for text in texts.split()] for texts in (a, b))
    assert pairs(tmp_path, ops_a, ops_b) == expected


def test_what_a_call_was_the_first_to_see_does_not_tell_it_apart(tmp_path: Path) -> None:
    seen = {"op": LETTERS["s"], "phase": "other"}
    a = [ev("x", "input", "", "self", **seen), op("s1a")]
    b = [ev("x", "input", "", "self", **seen), op("s1x"), op("s1a")]
    assert pairs(tmp_path, a, b) == "x:x -:s1x s1a:s1a"


def test_of_very_many_calls_the_nth_is_the_nth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_MAX_PAIRS", 5)
    a, b = ([op(text) for text in texts.split()] for texts in ("s1a s1b", "s1x s1a s1b"))
    assert pairs(tmp_path, a, b) == "s1a:s1x s1b:s1a -:s1b"


def test_what_one_run_computes_beside_the_training_is_no_divergence(tmp_path: Path) -> None:
    """A logged norm is the first sum of the step in B; the loss's sum is the first in A."""
    loss = [op("m4a"), op("s1a", reads=["m4a"]), ev("loss", "loss", "", "loss.0", reads=["s1a"])]
    norm = [op("m8n"), op("s1n", reads=["m8n"])]
    a, b = (
        write_steps(tmp_path / name, [events], level="op")
        for name, events in (("a", loss), ("b", norm + loss))
    )
    for one, other in ((a, b), (b, a)):
        assert verdict_of(one, other).verdict == "identical"


def test_a_difference_beside_it_is_told_where_it_is(tmp_path: Path) -> None:
    """B logs a norm, and its product is another one: the sum that reads it is not to blame."""
    norm = [op("m4n"), op("s1n", reads=["m4n"])]
    a, b = (
        write_steps(
            tmp_path / name,
            [
                [
                    ev("x", "input", "", "arg.0", value="x"),
                    *logged,
                    op("t4a", reads=["x"]),
                    Ev(**vars(op("m4a", reads=["t4a"])) | {"twist": name}),
                    Ev(**vars(op("s1a", reads=["m4a"])) | {"twist": name}),
                    ev("loss", "loss", "", "loss.0", reads=["s1a"], twist=name),
                ]
            ],
            level="op",
        )
        for name, logged in (("a", []), ("b", norm))
    )
    for one, other in ((a, b), (b, a)):
        verdict = verdict_of(one, other)
        [origin] = verdict.origins
        assert (origin.op, origin.class_) == ("aten.mul.Tensor", "kernel")
        assert origin.a and origin.a["shape"] == [4] and origin.b


def test_two_ops_that_change_places_are_told_as_such(tmp_path: Path) -> None:
    """A unscales and then takes the norm, B the other way round: each explains the other."""

    def steps(*texts: str) -> list[Ev]:
        before = "g"
        events = [ev("g", "input", "", "arg.0", value="g")]
        for text in texts:
            events.append(op(text, reads=[before]))
            before = text
        updated = ev("w", "parameter", phase="optimizer", value=texts, reads=[before])
        return [*events, updated]

    a = write_steps(tmp_path / "a", [steps("t4a", "s1a", "m4a")], level="op")
    b = write_steps(tmp_path / "b", [steps("s1b", "t4b", "m4b")], level="op")
    for one, other, first in ((a, b, "tanh"), (b, a, "sum")):
        verdict = verdict_of(one, other)
        assert verdict.verdict == "diverged"
        [origin] = verdict.origins
        assert origin.class_ == "structure" and origin.op and first in origin.op
        assert "another place" in origin.summary


def at_parameter(name: str, op: str, shape: int, value: str, **changes: Any) -> Ev:
    """Return the event of a call in the backward, where a parameter's gradient is accumulated."""
    what = {"phase": "backward", "module_class": "", "op": op, "shape": (shape,), "value": value}
    return ev(name, "written", "m", **(what | changes))


def zeroed(name: str, size: int) -> Ev:
    return at_parameter(name, "aten.zero_.default", size, "0")


@pytest.mark.parametrize("more", [False, True])
def test_a_reducer_may_zero_what_nobody_used_in_any_order(tmp_path: Path, more: bool) -> None:
    def step(*sizes: int, sum_: str = "s", before: bool = False) -> list[Ev]:
        zeros = [zeroed(f"z{size}", size) for size in sizes]
        logged = [op("s1a")] if before else []
        return [*logged, *zeros, at_parameter("sum", "aten.mul.out", 3, sum_)]

    a = write_steps(tmp_path / "a", [step(4, 8, 2)], level="op")
    b = write_steps(tmp_path / "b", [step(2, 4, 8, before=more)], level="op")
    assert verdict_of(a, b).verdict == "identical"
    # What is another one beside them is found all the same, and nothing else is.
    c = write_steps(tmp_path / "c", [step(2, 4, 8, sum_="other", before=more)], level="op")
    assert [o.op for o in verdict_of(a, c).origins] == ["aten.mul.out"]
    # Another one among those that have changed places.
    d = write_steps(tmp_path / "d", [step(2, 4, 9, before=more)], level="op")
    [origin] = verdict_of(a, d).origins
    shapes = [side and side["shape"] for side in (origin.a, origin.b)]
    assert (origin.class_, shapes) == ("metadata", [[8], [9]])
