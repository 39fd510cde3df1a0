"""What follows from another difference though no event that it read says so."""

from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Arm, Flags, Ints, Site


def follows_other_draw(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the draws before which the same generator was drawn from otherwise.

    A draw reads the state that the one before it found. That one leaves another state if it draws
    other sizes, from which the state that this one finds follows.
    """
    result: Flags = np.zeros(len(aligned), bool)
    draws = np.flatnonzero(mismatched & aligned.paired & aligned.having(_is_draw))
    if not len(draws):
        return result
    for arm, rows, index in _arms(aligned):
        otherwise = mismatched & (aligned.having(_is_arguments) | ~aligned.described_alike)
        calls = {
            arm.call_of(i) for i in np.flatnonzero(otherwise[rows]).tolist() if _has_op(arm, i)
        }
        for row in draws.tolist():
            before = [i for i in arm.direct(int(index[row])).tolist() if _is_draw(arm.site_of(i))]
            result[row] |= any(arm.call_of(i) in calls for i in before)
    return result


def follows_other_call(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the arguments of calls that one run alone makes with what another such call made."""
    result: Flags = np.zeros(len(aligned), bool)
    alone = mismatched & ~aligned.paired
    told = alone & aligned.having(_is_arguments)
    if not told.any():
        return result
    for arm, rows, _ in _arms(aligned):
        event, producer = arm.edges
        among = alone[rows[event]] & alone[rows[producer]]
        calls: set[tuple[Any, ...]] = set()
        for i, made in zip(event[among].tolist(), producer[among].tolist(), strict=True):
            if _has_op(arm, i) and _has_op(arm, made) and arm.call_of(i) != arm.call_of(made):
                calls.add(arm.call_of(i))
        for i in np.flatnonzero(told[rows]).tolist():
            result[rows[i]] = arm.call_of(i) in calls
    return result


def _arms(aligned: Aligned) -> tuple[tuple[Arm, Ints, Ints], ...]:
    """Return each arm with the rows of its events, and the events of the rows."""
    (rows_a, rows_b), a, b = aligned.rows, aligned.a, aligned.b
    return (a, rows_a, aligned.index_a), (b, rows_b, aligned.index_b)


def _has_op(arm: Arm, index: int) -> bool:
    return arm.site_of(index)["op"] is not None


def _is_draw(site: Site) -> bool:
    """Return whether a site is of the state in which an op found a generator."""
    return bool(site["kind"] == "generator" and site["op"] is not None)


def _is_arguments(site: Site) -> bool:
    return bool(site["kind"] == "arguments")
