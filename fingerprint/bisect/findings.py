"""What a rank's first differing step holds, in little: its events can be let go."""

from dataclasses import dataclass, replace
from sys import intern

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import (
    Flags,
    Ints,
    Site,
    is_batch,
    is_collective,
    is_kind,
    is_outside,
)
from fpdiff.fingerprint.bisect.classify import OUTSIDE, component_of, is_set_late
from fpdiff.fingerprint.bisect.meetings import Meeting, meeting_of
from fpdiff.fingerprint.bisect.origins import (
    Findings,
    blocks,
    find_origins,
    sides,
)
from fpdiff.fingerprint.bisect.reach import ancestors
from fpdiff.fingerprint.bisect.roots import root_in_b
from fpdiff.fingerprint.bisect.tier import Content, RankTier
from fpdiff.fingerprint.bisect.verdict import RankStep

_ORDER = ("init", "eval", "forward", "backward", "recompute", "optimizer", "other")
"""Phases in the order in which a step usually passes through them."""

Place = tuple[str, str]
"""(module, slot)."""

_OWN = ("parameter", "buffer", "optimizer state", "master weights")
_TENSORS = frozenset((*_OWN, *(f"{component}{OUTSIDE}" for component in _OWN)))
"""Components of the state that are tensors."""


@dataclass(frozen=True)
class Candidate:
    """A row that is an origin, unless it was received from another rank.

    Attributes:
        row: of the aligned step.
        count: how many neighbouring rows it stands for: a module more is one finding.
        moved: it comes at another place of the step; else its content or presence differs.
        reduced: it is a gradient as the optimizer sees it.
        meeting: the collective that it came out of, if it is known.
        begin: how early in the step it comes, comparable across ranks.
        cause: for a batch, the row of the first op that differs among those that prepared it.
        microbatches: how many the step has in A and in B, if this stands for those that only one
            of them has.
        buffer: of which buffer it is, if it is one at the start of the step.
        root_in_b: what the root of A is called in B, if this stands for all that follows from
            another model's being the root there.
    """

    row: int
    count: int
    moved: bool
    reduced: bool
    meeting: Meeting | None
    begin: tuple[int, ...]
    cause: int | None = None
    microbatches: tuple[int, int] | None = None
    buffer: Place | None = None
    root_in_b: str | None = None


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
        given: collectives to which the rank gave something that differs; `idle` those among them
            to which it led on other ranks alone, if at all.
        has_local: places of all of the rank's own gradients, equal or not.
        evaluation: "A" or "B" if only that run evaluated the model in the step, else "".
        is_alike: they are those of a rank alike (see `RankTier.likeness`), whose events were read.
    """

    rank: int
    step: int
    tier: RankTier
    row: RankStep
    candidates: list[Candidate]
    sent: frozenset[Place]
    received: frozenset[Place]
    given: frozenset[Meeting]
    idle: frozenset[Meeting]
    has_local: frozenset[Place]
    evaluation: str
    is_alike: bool = False

    def of_rank_alike(self, rank: int, tier: RankTier) -> "RankFindings":
        """Return the findings of a rank that is alike."""
        row = replace(self.row, rank=rank, steps_matched=tier.num_steps_before(self.step))
        return replace(self, rank=rank, tier=tier, row=row, is_alike=True)


def first_finding(rank: int, tier: RankTier) -> RankFindings | None:
    """Return the first step of a rank in which something that counts differs.

    Raises:
        StoreError: a file is damaged.
    """
    for step in tier.differences.having("any").tolist():
        found = examine(rank, step, tier)
        if found is not None:
            return _where_it_was_made(found)
    return None


def _where_it_was_made(found: RankFindings) -> RankFindings:
    """Return the findings of the first of the steps in which ops made what the step begins with.

    An averaged copy of the weights, say, that was written outside of the modules and that nothing
    else read.
    """
    while (earlier := _made_before(found)) is not None:
        found = earlier
    return found


def _made_before(found: RankFindings) -> RankFindings | None:
    """Return the findings of the step before, if ops there made what a step begins with."""
    tier, step = found.tier, found.step
    before = tier.num_steps_before(step)
    if not before:
        return None
    earlier = int(tier.steps[before - 1])
    if earlier not in tier.idle:
        return None
    tier.lasting[earlier] = _state(tier.aligned(step)) - _state(tier.aligned(earlier))
    return examine(found.rank, earlier, tier)


def _state(aligned: Aligned) -> frozenset[Content]:
    return _contents(aligned, np.flatnonzero(aligned.having(_is_held)))


def _contents(aligned: Aligned, rows: Ints) -> frozenset[Content]:
    """Return what rows hold, by the run."""
    found: set[Content] = set()
    for run, arm, index in (("A", aligned.a, aligned.index_a), ("B", aligned.b, aligned.index_b)):
        own = index[rows]
        found.update((run, *arm.content_of(i)) for i in own[own >= 0].tolist())
    return frozenset(found)


def _lasting(aligned: Aligned, lasting: frozenset[Content]) -> Flags:
    """Return the rows of what ops wrote that lasted: some later state is equal to it."""
    result: Flags = np.zeros(len(aligned), bool)
    if lasting:
        made = ~aligned.equal & aligned.having(is_outside) & aligned.having(_is_write)
        for row in np.flatnonzero(made).tolist():
            result[row] = not lasting.isdisjoint(_contents(aligned, np.array([row])))
    return result


def examine(
    rank: int, step: int, tier: RankTier, used: frozenset[Meeting] = frozenset()
) -> RankFindings | None:
    """Look at a step's events; return None if nothing that counts differs.

    Args:
        rank: the rank.
        step: the step.
        tier: the rank's steps.
        used: collectives of the step that led to something on another rank.

    Raises:
        StoreError: a file is damaged.
    """
    aligned = tier.aligned(step)
    sent = _sent(aligned)
    counts = np.zeros(len(aligned), bool)
    counts[[row for row, meeting in sent.items() if meeting in used]] = True
    counts |= _lasting(aligned, tier.lasting.get(step, frozenset()))
    findings = find_origins(aligned, counts)
    tier.idle.pop(step, None)
    if findings.num_idle:
        tier.idle[step] = findings.num_idle
    if not findings:
        return None
    mismatched = np.zeros(len(aligned), bool)
    mismatched[findings.mismatched] = True
    candidates = _batch_first(aligned, mismatched, _candidates(aligned, findings))
    candidates = _microbatches_first(aligned, mismatched, candidates)
    if (root := root_in_b(aligned, mismatched)) is not None:
        row, count = int(findings.mismatched[0]), len(findings.mismatched)
        begin = _begin(aligned, row)
        candidates = [Candidate(row, count, False, False, None, begin, root_in_b=root)]
    return RankFindings(
        rank=rank,
        step=step,
        tier=tier,
        row=_rank_step(rank, step, tier, aligned, findings),
        candidates=candidates,
        sent=_places(aligned, mismatched & aligned.having(is_kind("local_gradient"))),
        received=_places(aligned, mismatched & aligned.having(is_kind("reduced_gradient"))),
        given=frozenset(sent.values()),
        idle=frozenset(meeting for row, meeting in sent.items() if not mismatched[row]),
        has_local=_places(aligned, aligned.having(is_kind("local_gradient"))),
        evaluation=tier.differences[step].evaluation,
    )


def given(aligned: Aligned) -> frozenset[Meeting]:
    """Return the collectives to which a rank gave something that differs, idle or not."""
    return frozenset(_sent(aligned).values())


def _sent(aligned: Aligned) -> dict[int, Meeting]:
    """Return, by row, the collectives to which a rank gave something that differs."""
    rows = np.flatnonzero(~aligned.equal & aligned.having(is_kind("sent")))
    return {row: meeting_of(aligned, row) for row in rows.tolist()}


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
    # rows that moved together. A rewrite is always told by itself, and so is an option.
    alone = aligned.having(_is_alone)
    fold = blocks(side, aligned.having(_is_state), np.cumsum(alone), alone)
    counted = np.zeros(len(aligned), bool)
    counted[findings.mismatched] = True
    reduced = aligned.having(is_kind("reduced_gradient"))
    received = aligned.having(is_kind("received"))
    collectives = _around_collectives(aligned, side, counted, fold)
    rows = findings.origins
    folded = (side[rows] > 0) | np.isin(fold[rows], [*collectives])
    _, first = np.unique(np.where(folded, fold[rows], -1 - rows), return_index=True)
    rows = rows[np.sort(first)]
    rows = np.array([collectives.get(int(fold[row]), row) for row in rows.tolist()], np.int64)
    sizes = np.bincount((3 * fold + side)[counted], minlength=3 * int(fold.max()) + 3)
    counts = np.where(side[rows] > 0, sizes[3 * fold[rows] + side[rows]], 1)
    parts = [(rows, counts, False), (*_moves(aligned, findings.moved), True)]
    found = [
        Candidate(
            row,
            count,
            moved,
            bool(reduced[row]) and not moved,
            meeting_of(aligned, row) if received[row] and not moved else None,
            _begin(aligned, row),
            buffer=_buffer(aligned.site(row)),
        )
        for rows, counts, moved in parts
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    ]
    return _in_order(aligned, found)


def _in_order(aligned: Aligned, candidates: list[Candidate]) -> list[Candidate]:
    """Return candidates in program order, but for the order in which an optimizer works, the last.

    Parameters in another group of it are gone through in another order.
    """

    def place(candidate: Candidate) -> tuple[bool, int, bool]:
        is_order = candidate.moved and _is_of_optimizer(aligned.site(candidate.row))
        return is_order, candidate.row, not candidate.moved

    return sorted(candidates, key=place)


def _around_collectives(aligned: Aligned, side: Ints, counted: Flags, fold: Ints) -> dict[int, int]:
    """Fold what only one run has of a reduction in the backward, and return its collective's row.

    What a reducer does at each parameter before and after it, in a microbatch, is one finding, told
    as the first collective that only one run has, or that was given another dtype or shape: either
    run may do what the other does not, a copy say for a multiplication.
    """
    found: dict[int, int] = {}
    of_reducer = counted & aligned.having(_is_of_reducer)
    others = np.flatnonzero(of_reducer & aligned.having(is_collective) & ~aligned.described_alike)
    # What came out of one may be told as received: what went in says more.
    got = aligned.having(is_kind("received"))[others]
    for row in others[np.lexsort((others, got))].tolist():
        microbatch = int(aligned.microbatches[row])
        number = len(fold) + microbatch
        if number not in found:
            found[number] = row
            fold[of_reducer & (side > 0) & (aligned.microbatches == microbatch)] = number
            fold[row] = number
    return found


def _batch_first(
    aligned: Aligned, mismatched: Flags, candidates: list[Candidate]
) -> list[Candidate]:
    """Tell what prepared a batch as one finding: the batch.

    Unless what was drawn from a default generator is to blame: then the batch is its consequence.
    So it is of what another rank sent.
    """
    outside = aligned.having(is_outside)
    batches = np.flatnonzero(mismatched & aligned.having(is_batch) & aligned.having(_is_forward))
    if not outside.any():
        return candidates
    for batch in batches.tolist():
        made_from = ancestors(aligned, mismatched, batch) & outside
        prepared = [c for c in candidates if made_from[c.row] and not c.meeting]
        if not prepared:
            continue
        draws = [c for c in candidates if c.row < batch and _is_default_draw(aligned.site(c.row))]
        if draws:
            return [c for c in candidates if c in draws or c not in prepared]
        # The first op of all that differ: that of a sampler, say, whose numbers leave torch.
        among = ~aligned.equal & outside if batch == batches[0] else made_from
        found = Candidate(
            batch, 1, False, False, None, _begin(aligned, batch), int(np.flatnonzero(among)[0])
        )
        others = [c for c in candidates if c not in prepared]
        candidates = _in_order(aligned, [found, *others])
    return candidates


def _microbatches_first(
    aligned: Aligned, mismatched: Flags, candidates: list[Candidate]
) -> list[Candidate]:
    """Tell microbatches that only one run has as one finding, before what may follow from it.

    A loss, say, is divided by their number. What prepared their batches is part of it. What differs
    before them otherwise may be why there are more: a gradient that is not finite, and a step
    that was skipped for it. An option that was set late was set after them.
    """
    a, b = aligned.a, aligned.b
    if a.is_cut or b.is_cut or not len(a) or not len(b):
        return candidates
    numbers = int(a.microbatch.max()) + 1, int(b.microbatch.max()) + 1
    if numbers[0] == numbers[1]:
        return candidates
    more = sides(aligned) == (1 if numbers[0] > numbers[1] else 2)
    own = aligned.having(is_batch) & more & (aligned.microbatches >= min(numbers))
    if not own.any():
        return candidates
    batch = int(np.flatnonzero(own)[0])
    part = more & (aligned.microbatches >= min(numbers))
    for row in np.flatnonzero(own).tolist():
        # A number that was taken out of any tensor may have gone into them: no module is part.
        part |= more & ancestors(aligned, mismatched, row) & aligned.having(is_outside)
    candidates = [c for c in candidates if not part[c.row]]
    count = int(part.sum())
    first = Candidate(batch, count, False, False, None, _begin(aligned, batch), None, numbers)
    before = [
        c
        for c in candidates
        if c.begin < first.begin and not c.meeting and not _may_follow(aligned.site(c.row))
    ]
    return [*before, first, *(c for c in candidates if c not in before)]


def _moves(aligned: Aligned, moved: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each stretch of rows that moved, and how many it has.

    All that an optimizer does in another order is one: it goes through its parameters so.
    """
    stretch = np.cumsum(np.diff(moved, prepend=-2) > 1)
    stretch[aligned.having(_is_of_optimizer)[moved]] = 0
    _, first, counts = np.unique(stretch, return_index=True, return_counts=True)
    return moved[first], counts


def _begin(aligned: Aligned, row: int) -> tuple[int, ...]:
    phase = aligned.site(row)["phase"]
    order = _ORDER.index(phase) if phase in _ORDER else len(_ORDER)
    arm, index = aligned.arm_of(row)
    # What only one arm has may be numbered behind what it came before.
    numbers = aligned.microbatches[row], arm.own_microbatch[index]
    return int(order > 0), int(numbers[not aligned.paired[row]]), order


def _buffer(site: Site) -> Place | None:
    is_buffer = site["kind"] == "buffer" and site["phase"] == "init"
    return (site["module"], site["slot"]) if is_buffer else None


def _places(aligned: Aligned, rows: Flags) -> frozenset[Place]:
    sites = [aligned.site(row) for row in np.flatnonzero(rows).tolist()]
    # Thousands of ranks have the same names: each is kept once.
    return frozenset((intern(site["module"]), intern(site["slot"])) for site in sites)


def _may_follow(site: Site) -> bool:
    """Return whether a site may be divided by the number of microbatches, or was set later."""
    return bool(site["kind"] in ("loss", "arguments")) or is_set_late(site)


def _is_of_reducer(site: Site) -> bool:
    """Return whether a site is of an op that runs in the backward, and for no module's call."""
    return bool(site["op"] is not None and site["phase"] == "backward" and not site["module_class"])


def _is_forward(site: Site) -> bool:
    return bool(site["phase"] == "forward")


def _is_default_draw(site: Site) -> bool:
    """Return whether a site is a draw outside the modules from a generator nobody passed on."""
    return is_outside(site) and site["kind"] == "generator" and site["slot"] != "generator"


def _is_alone(site: Site) -> bool:
    return bool(site["kind"] == "rewrite" or is_set_late(site))


def _is_held(site: Site) -> bool:
    """Return whether a step starts from a site's tensor, or finds it outside the modules."""
    is_found = site["kind"] == "input" and is_outside(site)
    return is_found or component_of(site) in _TENSORS


def _is_write(site: Site) -> bool:
    """Return whether a site is of what an op made; a number may equal another by chance."""
    return bool(site["kind"] == "written" or (site["kind"] == "result" and site["shape"]))


def _is_of_optimizer(site: Site) -> bool:
    return bool(site["phase"] == "optimizer")


def _is_state(site: Site) -> bool:
    return component_of(site) is not None
