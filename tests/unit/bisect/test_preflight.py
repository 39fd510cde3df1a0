"""What two runs have in common, before any event is read."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Job, rewrite_json

from fpdiff.fingerprint.bisect.preflight import RUNGS, Common, preflight
from fpdiff.fingerprint.record.settings import LEVELS
from fpdiff.store.errors import CompareError
from fpdiff.store.run import Run


def common(tmp_path: Path, a: Job, b: Job, ranks: tuple[int, ...] = ()) -> Common:
    return preflight(Run.open(a.arm(tmp_path / "a")), Run.open(b.arm(tmp_path / "b")), ranks)


def job(**options: Any) -> Job:
    return Job(**({"steps": [0]} | options))


def test_what_can_be_recorded_can_be_compared() -> None:
    assert RUNGS == LEVELS


def test_ranks_of_both_are_compared(tmp_path: Path) -> None:
    found = common(tmp_path, job(ranks=[0, 1, 2, 4]), job(ranks=[0, 1, 3]))
    assert found.ranks == [0, 1]
    assert found.notes == [
        "A has no rank 3: the others are compared",
        "B has no ranks 2, 4: the others are compared",
    ]


@pytest.mark.parametrize("windowed", [False, True])
def test_a_rank_that_trains_nothing_is_noted_unless_it_was_left_out(
    tmp_path: Path, windowed: bool
) -> None:
    settings = {"ranks": [1, 2]} if windowed else {}
    server = job(ranks=[1, 2], group=[0, 1, 2], settings=settings)
    note = "rank 0 is in a process group and in neither run: no module ran there"
    assert common(tmp_path, server, server).notes == ([] if windowed else [note])


def test_ranks_that_were_asked_for(tmp_path: Path) -> None:
    a, b = job(ranks=[0, 1, 2]), job(ranks=[0, 1, 3])
    found = common(tmp_path, a, b, (1, 1))
    assert (found.ranks, found.notes) == ([1], [])
    one, other = (Run.open(tmp_path / name) for name in "ab")
    with pytest.raises(CompareError, match="ranks 2-3 are not in both runs; both have ranks 0-1"):
        preflight(one, other, (1, 2, 3))


def test_no_rank_in_common(tmp_path: Path) -> None:
    a, b = job(ranks=[0, 1]), job(ranks=[2])
    with pytest.raises(
        CompareError, match="no rank in common: one has ranks 0-1, the other rank 2"
    ):
        common(tmp_path, a, b)
    with pytest.raises(CompareError, match="rank 2 is not in both runs; both have no rank"):
        preflight(Run.open(tmp_path / "a"), Run.open(tmp_path / "b"), (2,))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"digest": "md5"}, "holds xxh3-128 digests and .*b md5"),
        (
            {"level": "thread"},
            "recorded at rung thread, which this version of fpdiff cannot compare",
        ),
        ({"level": None}, "recorded at rung None"),
        ({"settings": {"modules": "("}}, "modules '\\(', no regular expression"),
    ],
)
def test_what_cannot_be_compared(tmp_path: Path, run: dict[str, Any], message: str) -> None:
    with pytest.raises(CompareError, match=message):
        common(tmp_path, job(), job(run=run))


def test_rungs_and_windows(tmp_path: Path) -> None:
    found = common(tmp_path, job(level="step"), job(settings={"modules": "l1"}))
    assert (found.rung, found.rungs_differ, found.modules) == ("step", True, ["l1"])
    assert found.notes == [
        "A was recorded at rung step, B at layer: compared at step",
        "A was recorded for all modules, B for --modules 'l1': compared over what both have",
    ]


def test_equal_windows_hide_nothing(tmp_path: Path) -> None:
    same = job(settings={"modules": "l1"})
    found = common(tmp_path, same, same)
    assert (found.modules, found.rungs_differ, found.notes) == ([], False, [])


def test_records_that_ended_early(tmp_path: Path) -> None:
    stopped = job(ranks=[0, 1], info={"stopped": "recording stopped in step 3: OSError: full"})
    running = job(ranks=[0, 1], info={"finished": False}, run={"ended": None})
    assert common(tmp_path, stopped, running).notes == [
        "A, rank 0: recording stopped in step 3: OSError: full",
        "A, rank 1: recording stopped in step 3: OSError: full",
        "B's record of ranks 0-1 has not finished: its complete steps are compared",
    ]


def test_environments_are_compared_key_by_key(tmp_path: Path) -> None:
    one = {"decides.env.NCCL_ALGO": "Ring", "pid": 1, "argv": ["x"], "hostname": "h", "only": 1}
    other = {"decides.env.NCCL_ALGO": "Tree", "pid": 2, "argv": ["y"], "hostname": "h"}
    found = common(
        tmp_path,
        job(ranks=[0, 1], environment=one),
        job(ranks=[0, 1], environment=other, run={"command": ["python", "other.py"]}),
    )
    assert [(d.key, d.a, d.b, d.ranks, d.decides) for d in found.environment] == [
        ("env.NCCL_ALGO", "Ring", "Tree", [0, 1], True),
        ("command", ["python", "train.py"], ["python", "other.py"], [0, 1], False),
        ("only", 1, None, [0, 1], False),
    ]


def test_ranks_with_the_same_difference_share_an_entry(tmp_path: Path) -> None:
    a = job(ranks=[0, 1, 2])
    a.arm(tmp_path / "a")
    b = job(ranks=[0, 1, 2]).arm(tmp_path / "b")
    for rank in (0, 2):
        path = b / "ranks" / f"rank={rank:05d}.json"
        rewrite_json(path, environment={"decides.torch": "2.13.0", "decides.threads": 4})
    found = preflight(Run.open(tmp_path / "a"), Run.open(b), ())
    assert [(d.key, d.b, d.ranks) for d in found.environment if d.decides] == [
        ("threads", 4, [0, 2])
    ]


def test_blind_spots_are_counted_on_both_sides(tmp_path: Path) -> None:
    found = common(
        tmp_path,
        job(ranks=[0, 1], info={"blind_spots": {"x": 1, "y": 2}}),
        job(ranks=[0, 1], info={"blind_spots": {"x": 5}}),
    )
    assert found.blind_spots == [
        {"reason": "x", "a": 2, "b": 10},
        {"reason": "y", "a": 4, "b": 0},
    ]
