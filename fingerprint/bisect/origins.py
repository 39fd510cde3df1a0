"""Which mismatched events no mismatched event explains."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Flags, Ints, Site


@dataclass(frozen=True)
class Findings:
    """What is mismatched in a step of a rank.

    Attributes:
        mismatched: rows that differ and count, see `find_origins`.
        origins: rows among them that read nothing mismatched, in program order.
        moved: rows that come at another place of the step.
        num_evaluations: events of evaluations that only one run has.
    """

    mismatched: Ints
    origins: Ints
    moved: Ints
    num_evaluations: int

    @property
    def num_carriers(self) -> int:
        """How many of the mismatched read something mismatched."""
        return len(self.mismatched) - len(self.origins)

    def __bool__(self) -> bool:
        """Return whether anything that counts differs."""
        return bool(self.mismatched.size or self.moved.size)


def find_origins(aligned: Aligned) -> Findings:
    """Split the mismatched rows into origins and carriers.

    What one run has beyond the end of a record that was cut off does not count, nor do three kinds
    of difference: the state of a generator at step start (what a module
    drew from says where it began to matter), logged numbers, and evaluation passes that only one
    run made (what they changed shows later by itself).
    """
    evaluations = _evaluations(aligned)
    quiet = aligned.having(is_quiet)
    mismatched = ~aligned.equal & ~quiet & ~evaluations & ~beyond_the_end(aligned)
    origins = np.flatnonzero(mismatched & ~_read_by(aligned, mismatched))
    moved = aligned.moved(~quiet & ~aligned.having(is_evaluation))
    return Findings(np.flatnonzero(mismatched), origins, moved, int(evaluations.sum()))


def is_quiet(site: Site) -> bool:
    """Return whether a difference in a site's events says nothing by itself."""
    return bool(site["kind"] == "metric" or is_generator(site))


def is_generator(site: Site) -> bool:
    """Return whether a site is a generator's state at step start."""
    return bool(site["kind"] == "generator" and site["phase"] == "init")


def is_evaluation(site: Site) -> bool:
    """Return whether a site belongs to a forward without gradients."""
    return bool(site["phase"] == "eval")


@cache
def is_kind(*names: str) -> Callable[[Site], bool]:
    """Return the test whether a site is of one of some kinds; the same function each time."""
    return lambda site: bool(site["kind"] in names)


def is_batch(site: Site) -> bool:
    """Return whether a site is an argument of a root module."""
    return bool(site["kind"] == "input" and site["slot"].startswith("arg."))


def _is_pass(site: Site) -> bool:
    """Return whether a site comes with each evaluation pass: what the root got and returned."""
    returned = site["kind"] == "output" and not site["module"]
    return is_evaluation(site) and (is_batch(site) or returned)


def beyond_the_end(aligned: Aligned) -> Flags:
    """Return the rows that one arm has after the end of the other, where that was cut off."""
    result = np.zeros(len(aligned), bool)
    for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b)):
        if arm.is_cut:
            present = np.flatnonzero(index >= 0)
            result[present[-1] + 1 if len(present) else 0 :] = True
    return result


def sides(aligned: Aligned) -> Ints:
    """Return 0 for rows that both arms have, 1 for A's alone, 2 for B's alone."""
    return np.where(aligned.paired, 0, np.where(aligned.index_a >= 0, 1, 2)).astype(np.int64)


def blocks(*columns: Ints | Flags) -> Ints:
    """Number the stretches of rows over which none of the columns changes."""
    changes = np.zeros(len(columns[0]), bool)
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    result: Ints = np.cumsum(changes)
    return result


def _evaluations(aligned: Aligned) -> Flags:
    """Return the rows of evaluation passes that only one run made.

    A stretch of one-sided rows is such a pass if it holds an event of the root itself. Without
    one it is a difference inside a pass that both made, which counts like any other.
    """
    side = sides(aligned)
    evaluation = aligned.having(is_evaluation)
    candidates = (side > 0) & evaluation
    stretch = blocks(side, evaluation)
    whole = np.unique(stretch[candidates & aligned.having(_is_pass)])
    result: Flags = candidates & np.isin(stretch, whole)
    return result


def _read_by(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return for each row whether its event, in either arm, read a mismatched one."""
    result = np.zeros(len(aligned), bool)
    for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b)):
        present = index >= 0
        flags = np.zeros(len(arm), bool)
        flags[index[present]] = mismatched[present]
        result[present] |= arm.read_any(flags)[index[present]]
    return result
