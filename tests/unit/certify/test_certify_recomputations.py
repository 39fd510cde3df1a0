"""Recomputations that differ from what they recompute."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from certified import certified, job, texts
from synthetic_runs import (
    Edit,
    Ev,
    ev,
    find,
    insert,
)


def recomputing(*twisted: str, kind: str = "result", **changes: Any) -> Edit:
    """Return the edit that records l0's op and output, and both again in the backward."""

    def edit(step: int, rank: int, events: list[Ev]) -> None:
        op: dict[str, Any] = {"op": "aten.mul.Tensor", "value": ("product", step)} | changes
        out = find(events, "l0.out")
        insert(events, "l0.out", ev("mul", kind, "l0", **op))
        back: dict[str, Any] = {"phase": "recompute"}
        again = [
            ev("mul again", kind, "l0", **(op | back)),
            dataclasses.replace(out, name="out again", **back),
        ]
        insert(events, "back l0", *again)
        for name in twisted:
            find(events, name).twist = "other"

    return edit


def test_a_recomputation_that_is_equal(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", ranks=1, edit=recomputing()))
    assert found.verdict == "sound"
    assert found.checks[5].rests_on == "8 recomputed events looked for in the forward"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            recomputing("mul again", "out again"),
            "in the recomputation of module l0, aten.mul gave another out.0 than in its forward",
        ),
        (
            recomputing("out again"),
            "the recomputation of module l0 gave another out.0 than its forward",
        ),
        (
            recomputing(
                "mul again", kind="generator", slot="torch.cpu", op="aten.bernoulli_.float"
            ),
            (
                "in the recomputation of module l0, aten.bernoulli_ drew from another state of the"
                " generator than in its forward"
            ),
        ),
        (
            recomputing("mul again", kind="arguments", slot="p"),
            (
                "in the recomputation of module l0, aten.mul had another value of p than in its"
                " forward"
            ),
        ),
    ],
    ids=["op", "output", "draw", "arguments"],
)
def test_a_recomputation_that_differs(tmp_path: Path, edit: Edit, expected: str) -> None:
    found = certified(job(tmp_path / "run", ranks=1, edit=edit))
    assert texts(found) == [f"recomputation: rank 0, steps 0-3: {expected}"]


def test_a_recomputation_that_read_what_another_call_had_left(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        for number, mark in ((0, ""), (1, "#1")):
            out = find(events, f"l0.out{mark}")
            source = find(events, "l0.out#1") if step == 2 else out
            again: dict[str, Any] = {
                "name": f"again{mark}",
                "phase": "recompute",
                "microbatch": number,
            }
            again["reads"] = source.reads
            insert(events, f"back l0{mark}", dataclasses.replace(out, **again))

    def late(step: int, rank: int, events: list[Ev]) -> None:
        edit(step, rank, events)
        if step == 2:  # The second batch must have come when the first call is repeated.
            batch = find(events, "batch#1")
            events.remove(batch)
            insert(events, "l0.out", batch)

    found = certified(job(tmp_path / "run", ranks=1, microbatches=2, edit=late))
    assert texts(found) == [
        (
            "recomputation: rank 0, step 2: the recomputation of module l0 gave what another call"
            " of it had given"
        )
    ]
