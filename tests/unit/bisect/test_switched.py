"""Where entries of the environment differ that a program switched in its middle."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Job, at, twist, verdict_of

from fpdiff.fingerprint.bisect.switches import holds
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference

PHASES = ("forward", "backward", "optimizer")


def note(step: int, phase: str, value: Any, root: str = "") -> dict[str, Any]:
    return {"step": step, "phase": phase, "root": root, "key": "decides.threads", "value": value}


def found(tmp_path: Path, **switched: list[Any]) -> list[tuple[Any, ...]]:
    """Return how threads differ between two runs, which begin with one thread."""
    arms = [Job(info={"switched": switched.get(x, [])}).arm(tmp_path / x) for x in ("a", "b")]
    entries = [d for d in verdict_of(*arms).environment if d.key == "threads"]
    return [(d.a, d.b, d.since, d.until, tuple(d.phases)) for d in entries]


def test_a_switch_differs_from_where_one_run_throws_it(tmp_path: Path) -> None:
    own = [note(1, phase, 4) for phase in PHASES]
    assert found(tmp_path, b=own) == [(1, 4, 1, None, ())]


def test_a_switch_that_both_throw_alike_does_not_differ(tmp_path: Path) -> None:
    own = [note(1, phase, 4) for phase in PHASES]
    assert found(tmp_path, a=own, b=own) == []


def test_a_switch_that_is_thrown_back_differs_in_between(tmp_path: Path) -> None:
    own = [note(step, phase, n) for step, n in ((1, 4), (2, 1)) for phase in PHASES]
    assert found(tmp_path, b=own) == [(1, 4, 1, 1, ())]


def test_a_switch_around_forwards_differs_in_them(tmp_path: Path) -> None:
    assert found(tmp_path, a=[note(0, "forward", 4)]) == [(4, 1, 0, None, ("forward",))]


def test_a_switch_thrown_a_step_later_differs_for_a_step(tmp_path: Path) -> None:
    a = [note(1, phase, 4) for phase in PHASES]
    b = [note(2, phase, 4) for phase in PHASES]
    assert found(tmp_path, a=a, b=b) == [(4, 1, 1, 1, ())]


def test_a_switch_of_one_model_of_several_is_its_phases(tmp_path: Path) -> None:
    own = [note(1, "forward", 4, root="~Teacher"), note(1, "eval", 4)]
    assert found(tmp_path, b=own) == [(1, 4, 1, None, ("forward", "eval"))]


@pytest.mark.parametrize(
    "broken",
    [7, [7], [{}], [note(1, "forward", 4) | {"step": "one"}], [{**note(1, "x", 4), "root": 1}]],
)
def test_notes_that_make_no_sense_are_none(tmp_path: Path, broken: Any) -> None:
    assert found(tmp_path, b=broken) == []


def test_only_a_switch_that_was_thrown_before_explains_anything(tmp_path: Path) -> None:
    a = Job().arm(tmp_path / "a")
    for step, class_ in ((1, "environment"), (0, "computation")):
        info = {"switched": [note(1, phase, 4) for phase in PHASES]}
        b = Job(edit=at(step, 0, twist("l0.out")), info=info).arm(tmp_path / f"b{step}")
        [origin] = verdict_of(a, b).origins
        assert (origin.step, origin.class_) == (step, class_)


def test_a_switch_around_the_backward_explains_no_forward(tmp_path: Path) -> None:
    a = Job().arm(tmp_path / "a")
    info = {"switched": [note(0, "backward", 4)]}
    b = Job(edit=at(1, 0, twist("l0.out")), info=info).arm(tmp_path / "b")
    assert [origin.class_ for origin in verdict_of(a, b).origins] == ["computation"]


@pytest.mark.parametrize(
    ("step", "phase", "expected"),
    [
        (1, "forward", False),
        (2, "forward", True),
        (3, "forward", True),
        (4, "forward", False),
        (2, "backward", False),
        (2, "other", True),
    ],
)
def test_where_a_difference_holds(step: int, phase: str, expected: bool) -> None:
    difference = EnvironmentDifference(
        key="mkldnn", a=1, b=2, ranks=[0], decides=True, since=2, until=3, phases=["forward"]
    )
    assert holds(difference, step, phase) is expected
    everywhere = EnvironmentDifference(key="mkldnn", a=1, b=2, ranks=[0], decides=True)
    assert holds(everywhere, step, phase)


def test_a_recomputation_is_a_part_of_the_backward() -> None:
    difference = EnvironmentDifference(
        key="mkldnn", a=1, b=2, ranks=[0], decides=True, phases=["backward"]
    )
    assert holds(difference, 0, "recompute")
