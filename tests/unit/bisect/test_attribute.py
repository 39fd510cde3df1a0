"""Who began it and who only received it, on several ranks."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic import digest
from synthetic_runs import (
    Ev,
    Job,
    at,
    diverged,
    ev,
    find,
    insert,
    remove,
    rewrite_json,
    training_step,
    twist,
    verdict_of,
)

from fpdiff.fingerprint.bisect import attribute, compare


def test_origins_come_by_step_then_by_place_in_the_step(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1 and rank in (0, 1):
            twist("l0.out" if rank else "back l1")(events)
        if step == 0 and rank == 2:
            twist("master")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1, 2])
    assert [(o.step, o.rank) for o in verdict.origins] == [(0, 2), (1, 1), (1, 0)]
    assert verdict.first_step == 0
    assert verdict.receivers == []


def test_a_later_microbatch_is_later_whatever_its_phase(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            twist("l0.out#1" if rank == 0 else "back l0")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1], microbatches=2)
    assert [(o.rank, o.microbatch) for o in verdict.origins] == [(1, 0), (0, 1)]


@pytest.mark.parametrize("clip", [False, True])
def test_a_rank_that_took_the_difference_in_is_a_receiver(tmp_path: Path, clip: bool) -> None:
    # Only l1's gradient differs where it was computed; clipping spreads it to l0's.
    verdict = diverged(tmp_path, at(1, 1, twist("grad l1")), ranks=[0, 1, 2], clip=clip)
    assert [o.rank for o in verdict.origins] == [1]
    assert [(r.rank, r.step, r.from_) for r in verdict.receivers] == [(0, 1, [1]), (2, 1, [1])]
    assert "l1.weight" in verdict.receivers[0].via
    assert [r.rank for r in verdict.rank_steps] == [0, 1, 2]


def test_a_rank_with_an_origin_of_its_own_is_not_only_a_receiver(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, at(1, None, twist("batch")), ranks=[0, 1])
    assert [(o.rank, o.class_) for o in verdict.origins] == [(0, "data"), (1, "data")]
    assert verdict.receivers == []


def test_a_receiver_may_have_another_origin(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            twist("batch" if rank == 1 else "master")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1])
    assert [(o.rank, o.class_) for o in verdict.origins] == [(0, "state"), (1, "data")]
    assert [r.rank for r in verdict.receivers] == [0]


def test_a_sender_may_have_begun_to_differ_earlier(tmp_path: Path) -> None:
    # Rank 1's buffer differs from step 1 on; its gradients, and so rank 0, from step 2 on.
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if rank == 1 and step == 1:
            twist("norm.mean")(events)
        if rank == 1 and step == 2:
            find(events, "l0.out").reads.append("norm.mean")

    def both(step: int, rank: int, events: list[Ev]) -> None:
        if step == 2 and rank == 1:
            find(events, "l0.out").reads.append("norm.mean")

    a = Job(ranks=[0, 1], edit=both).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(ranks=[0, 1], edit=edit).arm(tmp_path / "b"))
    assert [(o.rank, o.step) for o in verdict.origins] == [(1, 1)]
    assert [(r.rank, r.step, r.from_) for r in verdict.receivers] == [(0, 2, [1])]


@pytest.mark.parametrize("steps", [(1, 2), (1, 1), (2, 1)])
def test_a_buffer_that_differs_later_than_on_another_rank_was_broadcast(
    tmp_path: Path, steps: tuple[int, int]
) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == steps[rank]:
            twist("norm.mean")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1])
    first = min(steps)
    assert [(o.rank, o.step) for o in verdict.origins] == [
        (rank, step) for rank, step in enumerate(steps) if step == first
    ]
    told = [(r.rank, r.from_, r.via) for r in verdict.receivers]
    via = "the broadcast of buffer norm.mean"
    assert told == [(r, [1 - r], via) for r, step in enumerate(steps) if step > first]


def test_a_buffer_is_broadcast_within_a_group(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if (step, rank) in ((1, 2), (2, 0)):
            twist("norm.mean")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1, 2], group=[0, 1])
    assert [(o.rank, o.step) for o in verdict.origins] == [(2, 1), (0, 2)]
    assert verdict.receivers == []


def test_equal_gradients_and_another_sum_are_a_collective(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, at(1, None, twist("reduced l0")), ranks=[0, 1])
    assert [(o.rank, o.class_) for o in verdict.origins] == [(0, "collective"), (1, "collective")]
    assert "each of the 2 ranks gave an equal gradient" in verdict.summary
    assert verdict.receivers == []


def test_a_gradient_that_one_rank_alone_got_otherwise_changed_after_the_reduction(
    tmp_path: Path,
) -> None:
    verdict = diverged(tmp_path, at(1, 1, twist("reduced l0")), ranks=[0, 1, 2])
    [origin] = verdict.origins
    assert (origin.rank, origin.class_) == (1, "computation")
    assert "all others got an equal one" in origin.summary
    assert "clipping" in str(origin.hint) and "deterministic" not in str(origin.hint)


def test_what_a_rank_that_differs_already_got_is_not_known_to_be_equal(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if (step, rank) == (1, 0):
            twist("norm.mean")(events)
        if (step, rank) == (2, 1):
            twist("reduced l0")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1])
    assert [(o.rank, o.step, o.class_) for o in verdict.origins] == [
        (0, 1, "state"),
        (1, 2, "collective"),
    ]


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("left_otherwise", [False, True])
def test_a_gradient_that_a_recorded_reduction_left_alike_changed_after_it(
    tmp_path: Path, is_sharded: bool, left_otherwise: bool
) -> None:
    def by_hand(step: int, rank: int, events: list[Ev]) -> None:
        own = digest("own", step, rank)
        find(events, "grad l0").value = own
        what: dict[str, Any] = {"slot": "tensors.0", "op": "c10d.allreduce_.default"}
        what |= {"phase": "backward" if is_sharded else "other", "members": "0,1"}
        sent = ev("sent", "sent", value=own, reads=["grad l0"], **what)
        received = ev("received", "received", value=("sum", step), **what)
        insert(events, "reduced l0", sent, received)
        if is_sharded:
            remove(events, *(e.name for e in events if e.kind == "local_gradient"))

    def changed(step: int, rank: int, events: list[Ev]) -> None:
        by_hand(step, rank, events)
        if step == 1:
            twist("received" if left_otherwise else "reduced l0")(events)
            twist("reduced l0")(events)

    a = Job(ranks=[0, 1], edit=by_hand).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(ranks=[0, 1], edit=changed).arm(tmp_path / "b"))
    expected = "collective" if left_otherwise else "computation"
    assert [o.class_ for o in verdict.origins] == [expected] * 2
    assert left_otherwise or "has changed after the reduction over 2 ranks" in verdict.summary


def test_a_reduction_of_which_some_ranks_got_something_else_is_a_collective(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1 and rank in (0, 2):
            twist("reduced l0")(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1, 2])
    assert [(o.rank, o.class_) for o in verdict.origins] == [(0, "collective"), (2, "collective")]
    assert "clipping" in str(verdict.origins[0].hint)


@pytest.mark.parametrize("own", [True, False])
def test_what_came_from_a_rank_that_had_ended_is_no_origin(tmp_path: Path, own: bool) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if own and (step, rank) == (2, 1):
            twist("norm.mean")(events)
        if (step, rank) == (3, 0):
            twist("reduced l0")(events)

    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    b = Job(ranks=[0, 1], edit=edit).arm(tmp_path / "b")
    ended = Job(ranks=[0, 1], steps=range(3), edit=edit).arm(tmp_path / "ended")
    shutil.rmtree(b / "journal" / "rank=00001")
    shutil.copytree(ended / "journal" / "rank=00001", b / "journal" / "rank=00001")
    verdict = verdict_of(a, b)
    assert {o.rank for o in verdict.origins} == ({1} if own else set())
    [receiver] = verdict.receivers
    assert (receiver.rank, receiver.from_) == (0, [1] if own else [])
    assert own or receiver.via.endswith("with rank 1, whose step 3 only A has")


def test_what_came_from_a_rank_that_was_not_compared_is_no_origin(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1 and rank == 1:
            twist("batch")(events)
        if step == 2 and rank == 2:
            twist("master")(events)

    a = Job(ranks=[0, 1, 2]).arm(tmp_path / "a")
    b = Job(ranks=[0, 1, 2], edit=edit).arm(tmp_path / "b")
    verdict = verdict_of(a, b, ranks=(0, 2))
    assert (verdict.verdict, verdict.num_origins, verdict.next) == ("diverged", 0, None)
    assert [(r.rank, r.step, r.from_) for r in verdict.receivers] == [(0, 1, []), (2, 1, [])]
    assert verdict.summary == (
        "rank 0, step 1: received through the reduction of the gradients of l0.weight, l1.weight"
        " with rank 1, not compared here"
    )


def test_gradients_that_are_not_recorded_before_the_reduction(tmp_path: Path) -> None:
    def sharded(step: int, rank: int, events: list[Ev]) -> None:
        events[:] = [e for e in events if e.kind != "local_gradient"]
        for e in events:
            if e.kind == "reduced_gradient":
                e.reads = [f"back {e.module}"]

    def planted(step: int, rank: int, events: list[Ev]) -> None:
        sharded(step, rank, events)
        if (step, rank) == (1, 1):
            twist("l0.out")(events)

    def reduction(step: int, rank: int, events: list[Ev]) -> None:
        sharded(step, rank, events)
        if step == 1:
            twist("reduced l0")(events)

    a = Job(ranks=[0, 1], edit=sharded).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(ranks=[0, 1], edit=planted).arm(tmp_path / "b"))
    assert [o.rank for o in verdict.origins] == [1]
    assert [r.rank for r in verdict.receivers] == [0]
    verdict = verdict_of(a, Job(ranks=[0, 1], edit=reduction).arm(tmp_path / "c"))
    assert [o.class_ for o in verdict.origins] == ["collective"] * 2
    assert "whose own are unknown" in verdict.summary


def test_a_gradient_that_nobody_reduced_is_a_computation(tmp_path: Path) -> None:
    [origin] = diverged(tmp_path, at(1, 0, twist("reduced l0"))).origins
    assert (origin.class_, origin.phase) == ("computation", "optimizer")


def test_origins_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribute, "MAX_ORIGINS", 6)

    def edit(step: int, rank: int, events: list[Ev]) -> None:
        for name in ("l0.weight", "l1.weight", "norm.mean", "lr", "scale"):
            twist(name)(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1])
    assert verdict.num_origins == 10
    assert [o.rank for o in verdict.origins] == [0, 0, 0, 1, 1, 1]
    assert verdict.to_dict()["num_origins"] == 10


def test_ranks_beyond_those_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_KEPT_RANKS", 1)
    verdict = diverged(tmp_path, at(1, None, twist("batch")), ranks=[0, 1, 2])
    assert [(o.rank, o.class_) for o in verdict.origins] == [(n, "data") for n in range(3)]


def test_a_rank_without_description_is_compared(tmp_path: Path) -> None:
    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    b = Job(ranks=[0, 1], edit=at(1, 1, twist("batch"))).arm(tmp_path / "b")
    (a / "ranks" / "rank=00000.json").unlink()
    verdict = verdict_of(a, b)
    assert "A has no description of rank 0: environments are not compared" in verdict.notes
    # What B says of rank 0's group is enough to know from whom it received.
    assert [r.rank for r in verdict.receivers] == [0]


def test_nonsense_in_json_files_is_not_believed(tmp_path: Path) -> None:
    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    for groups in (7, [7], [{"ranks": 7}], [{"ranks": ["x"]}]):
        rewrite_json(a / "ranks" / "rank=00000.json", environment={"process_groups": groups})
        rewrite_json(a / "ranks" / "rank=00001.json", environment=5, blind_spots=6)
        b = Job(ranks=[0, 1], edit=at(1, 0, twist("batch"))).arm(tmp_path / f"b{groups}"[:90])
        assert verdict_of(a, b).verdict == "diverged"


@pytest.mark.parametrize("why", ["l0.out", "loss", None])
def test_more_microbatches_on_all_ranks_may_follow_from_what_one_sent(
    tmp_path: Path, why: str | None
) -> None:
    """A step was skipped where a gradient was not finite; or the program makes more of them."""

    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            events[:] = training_step(step, rank, layers=2, microbatches=2)
            if why == "loss" or (why and rank == 1):
                twist(why)(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1])
    found = [(o.rank, o.microbatch, o.class_) for o in verdict.origins]
    more = "structure"
    if why == "l0.out":
        assert found == [(1, 0, "computation"), (1, 1, more)]
        assert [(r.rank, r.from_) for r in verdict.receivers] == [(0, [1])]
    else:
        scaled = [(0, 0, "computation"), (1, 0, "computation")] if why else []
        assert sorted(found) == sorted([(0, 1, more), (1, 1, more), *scaled])
        assert found[0] == (0, 1, more)
