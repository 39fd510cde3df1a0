"""Rows of events and the steps that follow one another in them."""

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest

from fpdiff.store.events import EventRows

CASES = [[], [7], [3, 3, 3], [1, 2, 3], [1, 1, 2, 2, 2, 5], [4, 4, 1, 4]]


def rows_of(steps: list[int]) -> EventRows:
    return EventRows.of(pa.table({"step": pa.array(steps, pa.int64()), "seq": range(len(steps))}))


def stretches(steps: list[int]) -> list[tuple[int, int]]:
    """Return the step and the first row of each stretch, found row by row."""
    return [(step, next(own)[0]) for step, own in groupby(enumerate(steps), lambda row: row[1])]


def check(rows: EventRows, steps: list[int], seqs: list[int]) -> None:
    assert list(zip(rows.steps.tolist(), rows.first.tolist(), strict=True)) == stretches(steps)
    assert len(rows) == len(steps)
    assert rows.table.to_pydict() == {"step": steps, "seq": seqs}


@pytest.mark.parametrize("steps", CASES)
def test_stretches_and_slices(steps: list[int]) -> None:
    rows = rows_of(steps)
    seqs = list(range(len(steps)))
    check(rows, steps, seqs)
    assert rows.slice(0) is rows and rows.slice(0, len(steps)) is rows
    for first in range(len(steps) + 1):
        check(rows.slice(first), steps[first:], seqs[first:])
        for end in range(first, len(steps) + 1):
            check(rows.slice(first, end), steps[first:end], seqs[first:end])


@pytest.mark.parametrize("steps", CASES)
@pytest.mark.parametrize("wanted", [[], [1], [2, 5], [4], [1, 2, 3, 4, 5, 7]])
def test_some_steps_only(steps: list[int], wanted: list[int]) -> None:
    found = rows_of(steps).only(np.array(wanted, np.int64))
    kept = [(step, seq) for seq, step in enumerate(steps) if step in wanted]
    check(found, [step for step, _ in kept], [seq for _, seq in kept])
