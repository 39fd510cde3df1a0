"""What a rank's first differing step holds, in little: its events can be let go."""

from dataclasses import dataclass

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Flags, Ints, Site
from fpdiff.fingerprint.bisect.classify import component_of
from fpdiff.fingerprint.bisect.origins import Findings, blocks, find_origins, is_kind, sides
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import RankStep

_ORDER = ("init", "eval", "forward", "backward", "recompute", "optimizer", "other")
"""Phases in the order in which a step usually passes through them."""

Place = tuple[str, str]
"""(module, slot)."""


@dataclass(frozen=True)
class Candidate:
    """A row that is an origin, unless it was received from another rank.

    Attributes:
        row: of the aligned step.
        count: how many neighbouring rows it stands for: a module more is one finding.
        moved: it comes at another place of the step; else its content or presence differs.
        reduced: it is a gradient as the optimizer sees it.
        begin: how early in the step it comes, comparable across ranks.
    """

    row: int
    count: int
    moved: bool
    reduced: bool
    begin: tuple[int, ...]


@dataclass(frozen=True)
class RankFindings:
    """The first differing step of one rank.

    Attributes:
        rank: the rank; `step` is the step.
        tier: the rank's steps; `tier.aligned(step)` reads the events again.
        row: the numbers of the verdict.
        candidates: in program order.
        sent: places of the rank's own gradients that differ.
        received: places of the gradients that differ where the optimizer sees them.
        has_local: places of all of the rank's own gradients, equal or not.
        evaluation: "A" or "B" if only that run evaluated the model in the step, else "".
    """

    rank: int
    step: int
    tier: RankTier
    row: RankStep
    candidates: list[Candidate]
    sent: frozenset[Place]
    received: frozenset[Place]
    has_local: frozenset[Place]
    evaluation: str


def examine(rank: int, step: int, tier: RankTier) -> RankFindings | None:
    """Look at a step's events; return None if nothing that counts differs.

    Raises:
        StoreError: a file is damaged.
    """
    aligned = tier.aligned(step)
    findings = find_origins(aligned)
    if not findings:
        return None
    candidates = _candidates(aligned, findings)
    mismatched = np.zeros(len(aligned), bool)
    mismatched[findings.mismatched] = True
    return RankFindings(
        rank=rank,
        step=step,
        tier=tier,
        row=_rank_step(rank, step, tier, aligned, findings),
        candidates=candidates,
        sent=_places(aligned, mismatched & aligned.having(is_kind("local_gradient"))),
        received=_places(aligned, mismatched & aligned.having(is_kind("reduced_gradient"))),
        has_local=_places(aligned, aligned.having(is_kind("local_gradient"))),
        evaluation=tier.differences[step].evaluation,
    )


def _rank_step(
    rank: int, step: int, tier: RankTier, aligned: Aligned, findings: Findings
) -> RankStep:
    side = sides(aligned)[findings.mismatched]
    return RankStep(
        rank=rank,
        step=step,
        steps_matched=tier.num_steps_before(step),
        events=len(aligned),
        mismatched=len(findings.mismatched),
        only_a=int((side == 1).sum()),
        only_b=int((side == 2).sum()),
        moved=len(findings.moved),
        carriers=findings.num_carriers,
    )


def _candidates(aligned: Aligned, findings: Findings) -> list[Candidate]:
    """Return the origins, neighbours of a structural difference folded into one."""
    side = sides(aligned)
    # What is folded: rows that only one run has and that are alike in being state or not, and
    # rows that moved together. A rewrite is always told by itself.
    alone = aligned.having(is_kind("rewrite"))
    fold = blocks(side, aligned.having(_is_state), np.cumsum(alone), alone)
    counted = np.zeros(len(aligned), bool)
    counted[findings.mismatched] = True
    reduced = aligned.having(is_kind("reduced_gradient"))
    rows = findings.origins
    _, first = np.unique(np.where(side[rows] > 0, fold[rows], -1 - rows), return_index=True)
    rows = rows[np.sort(first)]
    sizes = np.bincount(fold[counted & (side > 0)], minlength=int(fold.max()) + 1)
    counts = np.where(side[rows] > 0, sizes[fold[rows]], 1)
    parts = [(rows, counts, False), (*_moves(findings.moved), True)]
    found = [
        Candidate(row, count, moved, bool(reduced[row]) and not moved, _begin(aligned, row))
        for rows, counts, moved in parts
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda c: (c.row, not c.moved))


def _moves(moved: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each stretch of rows that moved, and how many it has."""
    starts = np.flatnonzero(np.diff(moved, prepend=-2) > 1)
    return moved[starts], np.diff(starts, append=len(moved))


def _begin(aligned: Aligned, row: int) -> tuple[int, ...]:
    arm, index = aligned.arm_of(row)
    phase = aligned.site(row)["phase"]
    order = _ORDER.index(phase) if phase in _ORDER else len(_ORDER)
    return int(order > 0), int(arm.microbatch[index]), order


def _places(aligned: Aligned, rows: Flags) -> frozenset[Place]:
    sites = [aligned.site(row) for row in np.flatnonzero(rows).tolist()]
    return frozenset((site["module"], site["slot"]) for site in sites)


def _is_state(site: Site) -> bool:
    return component_of(site) is not None
