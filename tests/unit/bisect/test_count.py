"""Every event that differs is counted, over all steps and ranks."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from synthetic import digest
from synthetic_runs import Edit, Ev, Job, amend, at, ev, insert, remove, twist, verdict_of

from fpdiff.fingerprint.bisect.verdict import Counted
from fpdiff.store.run import Run
from fpdiff.store.views import connect, query
from fpdiff.store.writer import SegmentLimits


def counted(tmp_path: Path, edit: Edit | None, **job: object) -> Counted:
    a = Job(**job).arm(tmp_path / "a")  # type: ignore[arg-type]
    b = Job(**job, edit=edit).arm(tmp_path / "b")  # type: ignore[arg-type]
    verdict = verdict_of(a, b, count=True)
    assert verdict.counted is not None
    return verdict.counted


def differing_events(tmp_path: Path) -> tuple[int, int, int]:
    """Count in SQL, over events paired by their number: nothing that compare uses."""
    runs = {name: Run.open(tmp_path / name) for name in "ab"}
    result = query(
        connect(runs),
        "SELECT count(*), count(*) FILTER (a.digest <> b.digest), count(DISTINCT (rank, step))"
        " FROM (FROM events WHERE run = 'a') a JOIN (FROM events WHERE run = 'b') b"
        " USING (rank, step, seq)",
    )
    [row] = result.rows()
    return row


def test_twins_have_nothing_to_count(tmp_path: Path) -> None:
    assert counted(tmp_path, None, ranks=[0, 1]) == Counted()


@pytest.mark.parametrize("parquet", [False, True])
def test_all_that_follows_from_a_difference_is_counted(tmp_path: Path, parquet: bool) -> None:
    found = counted(tmp_path, at(0, 1, twist("l0.out")), ranks=[0, 1, 2], parquet=parquet)
    events, differing, steps = differing_events(tmp_path)
    assert 0 < differing < events
    assert found == Counted(steps=steps, events=events, differing=differing)


def test_only_steps_that_differ_are_read(tmp_path: Path) -> None:
    found = counted(tmp_path, at(3, None, twist("l1.out")), ranks=[0, 1])
    events, differing, steps = differing_events(tmp_path)
    assert found == Counted(steps=2, events=events * 2 // steps, differing=differing)


def test_a_generator_that_nobody_draws_from_is_counted_too(tmp_path: Path) -> None:
    assert counted(tmp_path, at(2, 0, twist("python"))).differing == 1


def test_what_one_run_alone_has_is_counted_and_the_rest_is_paired(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        insert(events, "loss", ev("more", "output", "more", value="more"))
        remove(events, "training")

    found = counted(tmp_path, at(3, 0, edit))
    events, _, steps = differing_events(tmp_path)
    # As many events in both runs, but not at the same places: still only two differ.
    assert found == Counted(steps=1, events=events // steps + 1, differing=2)


def test_a_shape_that_differs_is_counted(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        next(event for event in events if event.name == "l1.exp_avg'").shape = (8, 4)

    assert counted(tmp_path, at(3, 0, edit)).differing == 1


def test_runs_cut_into_other_segments_are_counted_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"ranks": [0, 1], "steps": range(9), "parquet": True}
    a = Job(**job).arm(tmp_path / "a")  # type: ignore[arg-type]
    monkeypatch.setattr("fpdiff.store.writer.SegmentLimits", partial(SegmentLimits, steps=2))
    b = Job(**job, edit=at(1, 0, twist("l0.out"))).arm(tmp_path / "b")  # type: ignore[arg-type]
    found = verdict_of(a, b, count=True).counted
    events, differing, steps = differing_events(tmp_path)
    assert found is not None
    assert (found.steps, found.events) == (steps - 2, events - 2 * events // steps)
    assert found.differing == differing


@pytest.mark.parametrize(
    ("groups", "step", "rank", "bit"),
    [("", 0, 1, 0), ("a", 4, 0, 63), ("b", 5, 1, 64), ("ab", 8, 0, 127), ("ab", 3, 1, 1)],
)
def test_one_bit_in_any_row_group_is_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    step: int,
    rank: int,
    bit: int,
) -> None:
    """Each run has a row group for each of its steps, or one for all of a segment's."""
    monkeypatch.setattr("fpdiff.store.writer.SegmentLimits", partial(SegmentLimits, steps=5))
    number = int.from_bytes(digest("unmoved", [], None), "big") ^ 1 << bit
    edit = at(step, rank, amend("python", value=number.to_bytes(16, "big")))  # Nothing reads it.
    for name, change in (("a", None), ("b", edit)):
        rows = 1 if name in groups else 1 << 18
        monkeypatch.setattr("fpdiff.store.writer.ROW_GROUP_EVENTS", rows)
        Job(ranks=[0, 1], steps=range(9), parquet=True, edit=change).arm(tmp_path / name)
    num_groups = {
        name: pq.read_metadata(
            tmp_path / name / "events/rank=00000/seg-00000.parquet"
        ).num_row_groups
        for name in "ab"
    }
    assert num_groups == {name: 5 if name in groups else 1 for name in "ab"}
    found = verdict_of(tmp_path / "a", tmp_path / "b", count=True).counted
    events, _, steps = differing_events(tmp_path)
    assert found == Counted(steps=1, events=events // steps, differing=1)


def test_another_microbatch_is_another_place(tmp_path: Path) -> None:
    found = counted(tmp_path, at(2, 0, amend("python", microbatch=1)))
    assert found.differing == 2
