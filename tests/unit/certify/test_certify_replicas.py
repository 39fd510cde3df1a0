"""Replicas that drift, and shards, which are none."""

from pathlib import Path

import pytest
from certified import certified, job, texts
from synthetic_runs import Ev, at, find, twist

from fpdiff.fingerprint.digest.host import digest_bytes


def test_a_replica_that_drifts(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=at(2, 1, twist("l1.weight'"))))
    assert texts(found) == ["replicas: rank 1, step 3: parameter l1.weight drifted from rank 0"]
    assert found.summary == "rank 1, step 3: parameter l1.weight drifted from rank 0"


def test_the_few_drift_from_the_many(tmp_path: Path) -> None:
    edit = at(1, 0, lambda e: (twist("l0.weight'")(e), twist("l1.weight'")(e)))
    assert texts(certified(job(tmp_path / "run", ranks=3, edit=edit))) == [
        "replicas: rank 0, step 2: parameter l0.weight and 1 more drifted from rank 1"
    ]


def test_a_drift_in_the_last_step(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=at(3, 1, twist("l1.weight'"))))
    assert texts(found) == [
        "replicas: rank 1, step 3: parameter l1.weight drifted from rank 0 in the optimizer's step"
    ]


def shards(step: int, rank: int, events: list[Ev]) -> None:
    if step == 0:
        find(events, "l1.weight").value = ("shard", rank)


def test_shards_are_no_replicas(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=shards))
    assert found.verdict == "sound"
    assert found.checks[-1].rests_on == "1 parameter that began equal on ranks 0-1"


def test_a_replica_beside_shards_may_drift_too(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        shards(step, rank, events)
        at(1, 1, twist("l0.weight'"))(step, rank, events)

    found = certified(job(tmp_path / "run", edit=edit))
    assert texts(found) == ["replicas: rank 1, step 2: parameter l0.weight drifted from rank 0"]


@pytest.mark.parametrize("constant", [bytes(4), b"\0\0\x80\x3f"], ids=["zeros", "ones"])
@pytest.mark.parametrize("parts", [1, 2])
def test_shards_that_began_constant_are_no_replicas(
    tmp_path: Path, constant: bytes, parts: int
) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        find(events, "l0.weight").value = digest_bytes(constant * (4 * 8 // parts))
        at(1, 1, twist("l0.weight'"))(step, rank, events)

    def sharded(step: int, rank: int, events: list[Ev]) -> None:
        edit(step, rank, events)
        shards(step, rank, events)

    found = certified(job(tmp_path / "sharded", edit=sharded))
    assert found.verdict == "sound"
    assert found.checks[-1].result == "nothing"
    # Where all else is equal too, it is a replica.
    found = certified(job(tmp_path / "equal", edit=edit))
    assert texts(found) == ["replicas: rank 1, step 2: parameter l0.weight drifted from rank 0"]
