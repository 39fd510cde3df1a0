"""Which mismatched events no mismatched event explains."""

from dataclasses import dataclass

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned, Flags, Ints


@dataclass(frozen=True)
class Findings:
    """What is mismatched in a step of a rank.

    Attributes:
        mismatched: rows that differ and count, see `find_origins`.
        origins: rows among them that read nothing mismatched, in program order.
        num_carriers: how many of them read something mismatched.
        num_evaluations: events of evaluations that only one run has.
    """

    mismatched: Ints
    origins: Ints
    num_carriers: int
    num_evaluations: int


def find_origins(aligned: Aligned) -> Findings:
    """Split the mismatched rows into origins and carriers.

    Three kinds of difference do not count: the state of a generator at step start (what a module
    drew from says where it began to matter), logged numbers, and evaluation passes that only one
    run made (what they changed shows later by itself).
    """
    mismatched = ~aligned.equal
    num_evaluations = 0
    for row in np.flatnonzero(mismatched).tolist():
        site = aligned.site(row)
        if site["phase"] == "eval" and not aligned.paired[row]:
            num_evaluations += 1
            mismatched[row] = False
        elif site["kind"] == "metric" or site["kind"] == "generator" and site["phase"] == "init":
            mismatched[row] = False
    explained = _read_by(aligned, mismatched)
    origins = np.flatnonzero(mismatched & ~explained)
    rows = np.flatnonzero(mismatched)
    return Findings(rows, origins, len(rows) - len(origins), num_evaluations)


def _read_by(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return for each row whether its event, in either arm, read a mismatched one."""
    result = np.zeros(len(aligned), bool)
    for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b)):
        present = index >= 0
        flags = np.zeros(len(arm), bool)
        flags[index[present]] = mismatched[present]
        result[present] |= arm.read_any(flags)[index[present]]
    return result
