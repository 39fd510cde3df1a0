"""Runs of many ranks: read what matters, and say the same as if all had been read."""

from pathlib import Path
from typing import Any

import pytest
from fleet_run import Fleet, layers_for, write_fleet
from synthetic_runs import Ev, Job, at, find, twist, verdict_of

from fpdiff.fingerprint.bisect import arm, attribute, compare
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.certify.certify import certify_run
from fpdiff.store.compacting import compact_run
from fpdiff.store.run import Run

FLEET: dict[str, Any] = {"ranks": 64, "steps": 50, "shards": 4, "segment_steps": 25}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("fleet")
    fleets = {"a": None, "twin": None, "b": (21, 30)}
    return {n: write_fleet(root / n, Fleet(**FLEET, planted=p)) for n, p in fleets.items()}


def test_such_a_run_is_sound(tmp_path: Path) -> None:
    run = write_fleet(tmp_path / "run", Fleet(ranks=4, steps=6, shards=2, segment_steps=4))
    certificate = certify_run(Run.open(run))
    assert certificate.verdict == "sound" and certificate.events == 4 * 6 * 18
    assert layers_for(18) == 2


def test_twins_are_silent(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm.Arm, "__init__", None)  # No event is read.
    verdict = verdict_of(runs["a"], runs["twin"])
    assert verdict.verdict == "identical" and verdict.compared is not None
    assert (verdict.compared.events, verdict.notes) == (64 * 50 * 18, [])


def test_the_planted_difference_is_named(runs: dict[str, Path]) -> None:
    verdict = verdict_of(runs["a"], runs["b"], count=True)
    [origin] = verdict.origins
    assert (origin.rank, origin.step, origin.module) == (21, 30, "layers.1")
    assert {r.rank for r in verdict.receivers} == set(range(64)) - {21}
    assert all(r.from_ == [21] and r.step == 30 for r in verdict.receivers)
    assert [r.rank for r in verdict.rank_steps] == list(range(64))
    assert (verdict.effects.loss, verdict.effects.parameters) == (30, 30)
    assert verdict.counted is not None
    # In the step itself what follows the event, on the other ranks the gradients and weights;
    # later all but the batch, the generator and the learning rate.
    expected = (18 - 6) + 63 * 4 + 64 * 19 * 15
    assert (verdict.counted.differing, verdict.counted.steps) == (expected, 64 * 20)


def test_events_of_one_rank_are_read_for_all_that_are_alike(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = arm.Arm.__init__

    def spy(self: arm.Arm, record: Any, *args: Any, **options: Any) -> None:
        read.append(record.rank)
        original(self, record, *args, **options)

    monkeypatch.setattr(arm.Arm, "__init__", spy)
    some = verdict_of(runs["a"], runs["b"])
    assert set(read) == {0, 1, 2, 3, 21}
    monkeypatch.setattr(RankTier, "_likeness", lambda *_: None)
    every = verdict_of(runs["a"], runs["b"])
    assert set(read) == set(range(64))
    assert some.to_dict() == every.to_dict()


def test_a_compacted_run_gets_the_same_verdict(runs: dict[str, Path]) -> None:
    before = verdict_of(runs["a"], runs["b"]).to_dict()
    compact_run(runs["b"])
    assert verdict_of(runs["a"], runs["b"]).to_dict() == before


def alike(tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch, **job: Any) -> Any:
    """Return the verdict over ranks of which some are alike; it must be that of reading all."""
    a = Job(**job).arm(tmp_path / "a")
    b = Job(**job, edit=change).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    monkeypatch.setattr(RankTier, "_likeness", lambda *_: None)
    assert verdict.to_dict() == verdict_of(a, b).to_dict()
    return verdict


def test_what_no_rank_sent_is_each_ranks_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same wrong update on all ranks: nobody received it, so that each is read after all.
    verdict = alike(
        tmp_path, at(1, None, twist("l0.weight'")), monkeypatch, ranks=range(5), group=[]
    )
    assert [(o.rank, o.module, o.slot) for o in verdict.origins] == [
        (rank, "l0", "weight") for rank in range(5)
    ]
    assert verdict.receivers == []


def test_a_rank_whose_optimizer_fails_among_receivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1 and rank == 1:
            twist("l0.out")(events)
        if step == 1 and rank == 3:
            find(events, "l1.exp_avg'").twist = "a flipped bit"

    verdict = alike(tmp_path, edit, monkeypatch, ranks=range(6))
    assert {r.rank for r in verdict.receivers} == {0, 2, 3, 4, 5}
    assert [o.rank for o in verdict.origins] == [1]
    [failing] = [r for r in verdict.rank_steps if r.rank == 3]
    assert failing.mismatched == verdict.rank_steps[0].mismatched


@pytest.mark.parametrize("level", ["layer", "step"])
def test_ranks_that_log_or_draw_otherwise_are_alike_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        twist("python", rank)(events)
        if step == 2 and rank == 2:
            twist("l0.out" if level == "layer" else "grad l0")(events)

    verdict = alike(tmp_path, edit, monkeypatch, ranks=range(4), level=level)
    assert [o.rank for o in verdict.origins] == [2]


def test_an_error_in_one_rank_ends_the_comparison(runs: dict[str, Path], tmp_path: Path) -> None:
    run = write_fleet(tmp_path / "run", Fleet(**FLEET | {"ranks": 8}))
    path = run / "steps" / "rank=00005" / "seg-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(OSError, match="rank=00005/seg-00001.parquet is damaged"):
        verdict_of(runs["a"], run)


def test_groups_of_thousands_of_ranks_are_one_set(tmp_path: Path) -> None:
    run = Run.open(write_fleet(tmp_path / "run", Fleet(ranks=70, steps=1)))
    groups = attribute.Groups(run)
    assert groups.of(0) == frozenset(range(70))
    assert len({id(groups.of(rank)) for rank in range(70)}) == 1
    lists = {id(r.info["environment"]["process_groups"][0]["ranks"]) for r in run.ranks.values()}
    assert len(lists) == 1


def test_the_part_of_one_rank_depends_on_nothing_else(runs: dict[str, Path]) -> None:
    lens = Lens(None, ())
    a, b = Run.open(runs["a"]), Run.open(runs["b"])
    first, second = (compare.rank_tier(a.ranks[5], b.ranks[5], lens, ()) for _ in range(2))
    assert first.differences == second.differences and first.likeness == second.likeness
    assert first.differences.steps.tolist() == list(range(30, 50))
