"""Collectives and messages whose members do not agree."""

from pathlib import Path
from typing import Any

import pytest
from certified import certified, flip, job, part, rank_json, results, texts
from synthetic_runs import Edit, Ev, amend, at, ev, find, insert, remove, rewrite_json, twist

REDUCE = {"op": "c10d.allreduce_.default", "members": "0,1", "phase": "backward"}


def exchange(events: list[Ev], *, before: str = "reduced l0", **changes: Any) -> None:
    """Add an all_reduce of a bucket: what the rank gave, its arguments, what it got."""
    fields: dict[str, Any] = REDUCE | changes
    insert(
        events,
        before,
        ev("gave", "sent", slot="tensors.0", value="own", reads=["grad l0"], **fields),
        ev("with", "arguments", slot="reduce_op", value="sum", dtype="", shape=(), **fields),
        ev("got", "received", slot="tensors.0", value="all", reads=[], **fields),
    )


def exchanging(edit: Edit | None = None, **changes: Any) -> Edit:
    def both(step: int, rank: int, events: list[Ev]) -> None:
        exchange(events, **changes)
        if edit is not None:
            edit(step, rank, events)

    return both


def test_collectives_that_agree(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=exchanging()))
    assert found.verdict == "sound"
    assert found.checks[4].rests_on == "8 calls, 12 results compared"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            at(2, 1, twist("got")),
            (
                "rank 1, step 2: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank"
                " received other bits than rank 0"
            ),
        ),
        (
            at(2, 1, amend("gave", shape=(4, 4))),
            (
                "rank 1, step 2: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank"
                " gave float32[4, 4], unlike rank 0"
            ),
        ),
        (
            at(2, 1, amend("with", value="max")),
            (
                "rank 1, step 2: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank had"
                " other arguments (reduce_op) than rank 0"
            ),
        ),
        (
            at(None, 1, lambda events: remove(events, "got")),
            (
                "rank 1, steps 0-3: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank"
                " has no event of what it received"
            ),
        ),
        (
            at(2, 1, lambda events: remove(events, "gave", "with", "got")),
            "rank 1, step 2: it made 0 of the 1 call of c10d.allreduce_ of ranks 0-1",
        ),
    ],
    ids=["bits", "shape", "arguments", "unread", "absent"],
)
def test_collectives_that_disagree(tmp_path: Path, edit: Edit, expected: str) -> None:
    found = certified(job(tmp_path / "run", edit=exchanging(edit)))
    assert texts(found)[0] == f"collectives: {expected}"
    assert {finding.check for finding in found.findings} == {"collectives"}


def test_what_a_member_did_not_read_is_counted_and_no_finding(tmp_path: Path) -> None:
    edit = exchanging(at(None, 1, lambda events: remove(events, "got")))
    run = job(tmp_path / "run", edit=edit)
    reason = "collective output that no op read in its step"
    rewrite_json(rank_json(run, 1), blind_spots={reason: 4})
    found = certified(run)
    assert found.verdict == "sound"
    assert (
        found.checks[4].rests_on == "8 calls, 8 results compared, 4 not read where they should be"
    )


def test_a_scatter_gives_each_member_its_own(tmp_path: Path) -> None:
    edit = exchanging(at(None, 1, twist("got")), op="c10d._reduce_scatter_base_.default")
    assert certified(job(tmp_path / "run", edit=edit)).verdict == "sound"


def test_members_that_were_not_recorded_are_not_missed(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=exchanging(members="0,1,2,3")))
    assert found.verdict == "sound"


def message(step: int, rank: int, events: list[Ev]) -> None:
    kind, op = ("sent", "c10d.send.default") if rank == 0 else ("received", "c10d.recv_.default")
    fields: dict[str, Any] = {
        "members": "0>1",
        "phase": "other",
        "value": ("message", step),
        "reads": [],
    }
    insert(events, "reduced l0", ev("it", kind, slot="tensors.0", op=op, **fields))


def test_a_collective_whose_other_members_were_not_read_is_not_checked(tmp_path: Path) -> None:
    run = job(tmp_path / "run", edit=exchanging())
    for segment in (0, 1):
        flip(part(run, "events", 1, segment))
    assert results(certified(run))["collectives"] == "nothing"


def test_messages(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "sound", edit=message))
    assert found.verdict == "sound"
    assert found.checks[4].rests_on == "4 messages"

    def garble(step: int, rank: int, events: list[Ev]) -> None:
        message(step, rank, events)
        if (step, rank) == (1, 1):
            find(events, "it").twist = "garbled"
        if (step, rank) == (3, 1):
            remove(events, "it")

    assert texts(certified(job(tmp_path / "garbled", edit=garble))) == [
        "collectives: rank 1, step 1: 1 message from rank 0 arrived with other bits",
        "collectives: rank 1, step 3: 1 message from rank 0 never arrived",
    ]


def test_a_message_may_arrive_in_the_step_after(tmp_path: Path) -> None:
    def late(step: int, rank: int, events: list[Ev]) -> None:
        message(step, rank, events)
        if rank == 1:
            find(events, "it").value = ("message", step - 1)
            if step == 0:
                remove(events, "it")

    found = certified(job(tmp_path / "run", edit=late))
    assert [finding.steps for finding in found.findings] == [[3]]
    assert texts(found) == ["collectives: rank 1, step 3: 1 message from rank 0 never arrived"]
