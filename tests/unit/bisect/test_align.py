"""Pairing the events of a step, and reading what each of them read."""

from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import Ev, ev, write_steps

from fpdiff.fingerprint.bisect.align import Aligned, align
from fpdiff.fingerprint.bisect.arm import Arm, Keys, Sites
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.store.run import Run

CLEAR = Lens(None, ())


def arm(path: Path, events: list[Ev], keys: Keys, lens: Lens = CLEAR, step: int = 0) -> Arm:
    record = Run.open(write_steps(path, [events])).ranks[0]
    return Arm(record, step, Sites(record, keys, lens))


def aligned(path: Path, a: list[Ev], b: list[Ev]) -> Aligned:
    keys = Keys()
    return align(arm(path / "a", a, keys), arm(path / "b", b, keys))


def outputs(names: str) -> list[Ev]:
    return [ev(name, "output", name) for name in names]


def pairs(rows: Aligned) -> list[tuple[int, int]]:
    return list(zip(rows.index_a.tolist(), rows.index_b.tolist(), strict=True))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", []),
        ("", "x", [(-1, 0)]),
        ("x", "", [(0, -1)]),
        ("xy", "xy", [(0, 0), (1, 1)]),
        ("xy", "xny", [(0, 0), (-1, 1), (1, 2)]),
        ("xy", "nxy", [(-1, 0), (0, 1), (1, 2)]),
        ("xy", "xyn", [(0, 0), (1, 1), (-1, 2)]),
        ("xny", "xy", [(0, 0), (1, -1), (2, 1)]),
        ("xay", "xby", [(0, 0), (-1, 1), (1, -1), (2, 2)]),
        ("xyz", "yzx", [(0, 2), (1, 0), (2, 1)]),
    ],
)
def test_what_one_arm_has_comes_where_it_would_have(
    tmp_path: Path, a: str, b: str, expected: list[tuple[int, int]]
) -> None:
    rows = aligned(tmp_path, outputs(a), outputs(b))
    assert pairs(rows) == expected
    for which, count in enumerate((len(a), len(b))):
        own = [pair[which] for pair in expected]
        assert [own[row] for row in rows.rows[which].tolist()] == list(range(count))


def test_repeats_of_a_place_pair_in_order_and_none_is_lost(tmp_path: Path) -> None:
    # Two modules of one path but other classes: their keys are equal.
    twice = [ev("x", "output", "m"), ev("y", "output", "m", module_class="Other", value=1)]
    rows = aligned(tmp_path, twice, [ev("n", "output", "n"), *twice, ev("z", "mark", "m")])
    assert pairs(rows) == [(-1, 0), (0, 1), (1, 2), (-1, 3)]
    assert rows.equal.tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("b", "moved"),
    [("wxyz", ""), ("xwyz", "w"), ("xyzw", "w"), ("zwxy", "z"), ("yzwx", "wx"), ("wnyz", "")],
)
def test_the_fewest_moves_are_told(tmp_path: Path, b: str, moved: str) -> None:
    rows = aligned(tmp_path, outputs("wxyz"), outputs(b))
    found = rows.moved(np.ones(len(rows), bool)).tolist()
    names = "".join(rows.site(row)["module"] for row in found)
    assert len(names) == len(moved)
    assert names == moved or len(moved) == 2


def test_moves_of_what_does_not_count_are_none(tmp_path: Path) -> None:
    rows = aligned(tmp_path, outputs("wxyz"), outputs("xyzw"))
    counted = np.array([rows.site(row)["module"] != "w" for row in range(len(rows))])
    assert not rows.moved(counted).size


def test_dtype_and_shape_are_no_part_of_the_key(tmp_path: Path) -> None:
    a = [ev("x", "output", "x"), ev("y", "output", "y")]
    b = [ev("x", "output", "x", dtype="int8"), ev("y", "output", "y", shape=(1,))]
    rows = aligned(tmp_path, a, b)
    assert rows.paired.all() and not rows.described_alike.any() and not rows.equal.any()


def test_sites_are_joined_by_their_flags(tmp_path: Path) -> None:
    rows = aligned(tmp_path, outputs("xy"), [*outputs("x"), ev("l", "loss", "", "loss.0")])

    def is_loss(site: dict[str, object]) -> bool:
        return site["kind"] == "loss"

    assert [rows.site(row)["kind"] for row in range(3)] == ["output", "loss", "output"]
    assert rows.having(is_loss).tolist() == [False, True, False]


CHAIN = [
    ev("a", "parameter", "m", "a", phase="init"),
    ev("b", "output", "m", "b", reads=["a"]),
    ev("c", "output", "m", "c"),
    ev("d", "loss", "", "loss.0", span=2),
    ev("e", "loss", "", "loss.1", reads=["a"], span=1),
    ev("f", "loss", "", "loss.2", reads=["c"]),
    ev("g", "loss", "", "loss.3", span=99),
]


def test_what_an_event_read(tmp_path: Path) -> None:
    events = arm(tmp_path, CHAIN, Keys())
    read = [events.producers(index).tolist() for index in range(len(events))]
    assert read == [[], [0], [], [1, 2], [0, 3], [2], [0, 1, 2, 3, 4, 5]]
    assert [events.direct(index).tolist() for index in (3, 4)] == [[], [0]]


@pytest.mark.parametrize("lens", [CLEAR, Lens("step", ()), Lens(None, ("^$",))])
def test_read_any_agrees_with_producers(tmp_path: Path, lens: Lens) -> None:
    events = arm(tmp_path, CHAIN, Keys(), lens)
    for flagged in range(len(events)):
        flags = np.zeros(len(events), bool)
        flags[flagged] = True
        expected = [flagged in events.producers(index) for index in range(len(events))]
        assert events.read_any(flags).tolist() == expected


def test_what_read_something_hidden_read_all_before_it(tmp_path: Path) -> None:
    events = arm(tmp_path, CHAIN, Keys(), Lens("step", ()))  # Hides b and c.
    assert [events.site_of(index)["slot"] for index in range(len(events))] == [
        "a",
        "loss.0",
        "loss.1",
        "loss.2",
        "loss.3",
    ]
    read = [events.producers(index).tolist() for index in range(len(events))]
    # loss.1 read a and loss.0, both shown: exactly those.
    assert read == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_producer_of_another_step_is_left_out(tmp_path: Path) -> None:
    first = [ev("x", "output", "x"), ev("y", "output", "y")]
    second = [ev("x", "output", "x"), ev("z", "output", "y", span=5)]
    record = Run.open(write_steps(tmp_path, [first, second])).ranks[0]
    events = Arm(record, 1, Sites(record, Keys(), CLEAR))
    assert events.producers(1).tolist() == [0]


@pytest.mark.parametrize("lens", [CLEAR, Lens("step", ()), Lens(None, ("^$",))])
def test_spread_is_read_any_over_and_over(tmp_path: Path, lens: Lens) -> None:
    events = arm(tmp_path, CHAIN, Keys(), lens)
    count = len(events)
    for flagged in range(count):
        for left_out in range(count):
            flags, among = np.zeros(count, bool), np.arange(count) != left_out
            flags[flagged] = True
            expected = flags.copy()
            for _ in range(count):
                expected |= events.read_any(expected) & among
            assert events.spread(flags, among).tolist() == expected.tolist()
