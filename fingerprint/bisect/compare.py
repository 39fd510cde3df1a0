"""The whole way from two runs to a verdict."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fpdiff.fingerprint.bisect import advice
from fpdiff.fingerprint.bisect.attribute import Attribution, Groups
from fpdiff.fingerprint.bisect.continuation import find_continuation
from fpdiff.fingerprint.bisect.count import count as count_events
from fpdiff.fingerprint.bisect.differences import EVALUATIONS
from fpdiff.fingerprint.bisect.findings import RankFindings, first_finding
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.metrics import find_metrics
from fpdiff.fingerprint.bisect.parallel import Engine, in_parallel
from fpdiff.fingerprint.bisect.preflight import OP_RUNGS, Common, preflight
from fpdiff.fingerprint.bisect.senders import with_senders
from fpdiff.fingerprint.bisect.tier import Ranges, RankTier
from fpdiff.fingerprint.bisect.verdict import (
    Compared,
    Counted,
    Effects,
    Origin,
    OriginGroup,
    Verdict,
)
from fpdiff.fingerprint.bisect.wording import counted, ranks_text, steps_text
from fpdiff.store.errors import CompareError
from fpdiff.store.progress import Progress
from fpdiff.store.run import Run

_KEPT_RANKS = 4
"""So many differing ranks keep their events in memory; those of others are read again."""

_LOOKED_AT_RANKS = 16
"""Generators and parameters are looked into on so many ranks: it takes reading events."""

ALIGN = ("number", "auto")

Tiers = dict[int, RankTier]


def compare_runs(
    a: Run,
    b: Run,
    *,
    steps: Ranges = (),
    ranks: tuple[int, ...] = (),
    align: str = "number",
    count: bool = False,
    engine: Engine = in_parallel,
    progress: Progress | None = None,
) -> Verdict:
    """Compare two runs.

    Args:
        a: the run that is taken as the reference.
        b: the other.
        steps: compare only these, half-open ranges; all if empty.
        ranks: compare only these; all if empty.
        align: "number" pairs steps of the same number; "auto" finds by what they start from which
            step of one run the other begins with.
        count: read every step that differs, and count the events that do.
        engine: what does the work on many ranks at once.
        progress: called with (done, in all): ranks, and those among them whose events are read.

    Raises:
        StoreError: a run cannot be read.
        CompareError: nothing that both hold can be compared.
    """
    if align not in ALIGN:
        raise CompareError(f"--align {align} is not known: give {' or '.join(ALIGN)}")
    continuation = find_continuation(a, b, steps) if align == "auto" else None
    if continuation is not None:
        b = b.shifted(continuation.shift)
    common = preflight(a, b, ranks)
    lens = Lens(common.rung if common.rungs_differ else None, tuple(common.modules))
    tell = _Progress(len(common.ranks), progress)
    pair = RankPair(a, b, lens, steps)
    tiers: Tiers = dict(zip(common.ranks, engine(pair.tier, common.ranks, tell.one), strict=True))
    found = _findings(tiers, engine, tell)
    found = with_senders(found, tiers)
    notes = [
        *([continuation.note] if continuation is not None and continuation.shift else []),
        *common.notes,
        *_step_notes(tiers),
        *_evaluation_notes(tiers, found),
        *_idle_notes(tiers, found, common.rung),
    ]
    tiers = {rank: tier for rank, tier in tiers.items() if len(tier.steps)}
    compared = _compared(common, tiers)
    notes += _generator_notes(tiers) if not found else []
    attribution = Attribution(
        found,
        groups=Groups(a, b),
        ranks=compared.ranks,
        rung=common.rung,
        environment=common.environment,
        tiers=tiers,
        rehashed=all(run.settings.get("rehash") for run in (a, b)),
    )
    origins, groups = attribution.origins()
    return Verdict(
        verdict="diverged" if found else "identical",
        summary=_diverged(origins, groups, attribution) if found else _identical(compared),
        a=str(a.path),
        b=str(b.path),
        compared=compared,
        first_step=min((f.step for f in found), default=None),
        origins=origins,
        num_origins=attribution.num_origins,
        groups=groups,
        receivers=attribution.receivers,
        rank_steps=[f.row for f in found],
        effects=_effects(tiers.values(), diverged=bool(found)),
        metrics=find_metrics(tiers),
        environment=common.environment,
        blind_spots=common.blind_spots,
        notes=notes,
        counted=_count(tiers, engine, tell) if count else None,
        next=advice.next_command(b, common.rung, origins),
    )


@dataclass(frozen=True)
class RankPair:
    """Two runs of which single ranks are compared: what comes out depends on nothing else."""

    a: Run
    b: Run
    lens: Lens
    steps: Ranges

    def tier(self, rank: int) -> RankTier:
        """Compare a rank by its step rows.

        Raises:
            StoreError: a file is damaged.
        """
        tier = RankTier(self.a.ranks[rank], self.b.ranks[rank], lens=self.lens, steps=self.steps)
        tier.release()
        return tier


@dataclass(frozen=True)
class _ToLookAt:
    """A rank whose events are to be read; kept in memory if they are to be held."""

    rank: int
    tier: RankTier
    is_held: bool


def _look(one: _ToLookAt) -> tuple[RankTier, RankFindings | None]:
    """Return a rank's tier, which has learnt which ops lead to nothing, and its findings."""
    finding = first_finding(one.rank, one.tier)
    one.tier.is_held = finding is not None and one.is_held
    one.tier.release()
    return one.tier, finding


def _findings(tiers: Tiers, engine: Engine, tell: "_Progress") -> list[RankFindings]:
    """Return the first difference that counts of each rank that has one.

    Of ranks alike, the events of one are read.
    """
    differing = [rank for rank, tier in tiers.items() if len(tier.differences.having("any"))]
    first_alike: dict[object, int] = {}
    for rank in differing:
        first_alike.setdefault(tiers[rank].likeness or rank, rank)
    held = set(differing[:_KEPT_RANKS])
    read = list(first_alike.values())
    tell.total += len(read)
    items = [_ToLookAt(rank, tiers[rank], rank in held) for rank in read]
    known = {}
    for rank, (tier, finding) in zip(read, engine(_look, items, tell.one), strict=True):
        tiers[rank], known[rank] = tier, finding
    found = []
    for rank in differing:
        finding = known[first_alike[tiers[rank].likeness or rank]]
        if finding is not None and finding.rank != rank:
            finding = finding.of_rank_alike(rank, tiers[rank])
        found += [finding] if finding is not None else []
    return found


def _count(tiers: Tiers, engine: Engine, tell: "_Progress") -> Counted:
    """Count the events that differ, on all ranks."""
    differing = [tier for tier in tiers.values() if len(tier.differences)]
    tell.total += len(differing)
    return sum(engine(count_events, differing, tell.one), Counted())


class _Progress:
    """Counts what is done, and tells it on."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self.total = total
        self._done = 0
        self._tell = tell

    def one(self) -> None:
        """Count one more."""
        self._done += 1
        if self._tell is not None:
            self._tell(self._done, self.total)


def _compared(common: Common, tiers: Tiers) -> Compared:
    events = sum(tier.num_events for tier in tiers.values())
    if not events:
        raise CompareError(
            "the two runs have no complete step in common: compare or record the same steps"
            " (--steps, --first-step)"
        )
    return Compared(
        rung=common.rung,
        ranks=list(tiers),
        steps=[
            min(int(tier.steps[0]) for tier in tiers.values()),
            max(int(tier.steps[-1]) for tier in tiers.values()),
        ],
        num_steps=max(len(tier.steps) for tier in tiers.values()),
        events=events,
    )


def _effects(tiers: Collection[RankTier], *, diverged: bool) -> Effects:
    def first(what: str) -> int | None:
        return min((s for t in tiers if (s := t.first_with(what)) is not None), default=None)

    healed = diverged and not any(tier.differs_at_end() for tier in tiers)
    # Where only the events can tell, they are read on so many ranks at most.
    certain = [tier for tier in tiers if not tier.is_unsure_of_parameters()]
    unsure = [tier for tier in tiers if tier.is_unsure_of_parameters()][:_LOOKED_AT_RANKS]
    found = (tier.first_with_other_parameters() for tier in (*certain, *unsure))
    parameters = min((step for step in found if step is not None), default=None)
    if parameters is None:  # What is trained may be no module's.
        among = [tier for tier in tiers if tier.first_with("any") is not None][:_LOOKED_AT_RANKS]
        masters = (tier.first_with_other_masters() for tier in among)
        parameters = min((step for step in masters if step is not None), default=None)
    return Effects(loss=first("loss"), parameters=parameters, healed=healed)


def _step_notes(tiers: Tiers) -> list[str]:
    """Say where the runs cover other steps; ranks with the same story share a note."""
    stories: dict[str, list[int]] = {}
    for rank, tier in tiers.items():
        a, b = tier.all_steps
        # With a window of steps, what lies outside of it is nobody's concern.
        if not len(tier.steps) or (not np.array_equal(a, b) and not tier.is_windowed):
            story = f"A has {steps_text(a.tolist())}, B has {steps_text(b.tolist())}"
            story += f": compared over {steps_text(tier.steps.tolist())}"
            stories.setdefault(story, []).append(rank)
        for name in tier.cut_short:
            story = f"{name}'s record ends within step {tier.steps[-1]}: compared up to there"
            stories.setdefault(story, []).append(rank)
    return _told(stories, len(tiers))


def _evaluation_notes(tiers: Tiers, found: list[RankFindings]) -> list[str]:
    """Say where the runs evaluated the model otherwise and nothing else differs."""
    end = {f.rank: f.step for f in found}
    stories: dict[str, list[int]] = {}
    for rank, tier in tiers.items():
        for label, own in _evaluations(tier, end.get(rank)).items():
            what = f"only {label} evaluated the model" if label else "evaluations differ"
            story = f"{what} in {steps_text(own)}; nothing else differs there"
            stories.setdefault(story, []).append(rank)
    return _told(stories, len(tiers))


def _evaluations(tier: RankTier, end: int | None) -> dict[str, list[int]]:
    """Return the steps before one in which the evaluation differs, by the run that made it."""
    differences = tier.differences
    unsure = np.isin(differences.steps, differences.having("unsure"))
    early = np.ones(len(differences), bool) if end is None else differences.steps < end
    found = {}
    for label in EVALUATIONS:
        which = differences.evaluations(label) & early & (unsure | bool(label))
        if which.any():
            found[label] = differences.steps[which].tolist()
    return dict(sorted(found.items(), key=lambda entry: entry[1][0]))


def _idle_notes(tiers: Tiers, found: list[RankFindings], rung: str) -> list[str]:
    """Say where operators outside of the model differ and nothing else does that read them.

    Below the rung op collectives alone are recorded of them: who read one is not known where
    anything differs.
    """
    what = "operators" if rung in OP_RUNGS else "collectives"
    stories: dict[str, list[int]] = {}
    end = {f.rank: f.step for f in found} if rung not in OP_RUNGS else {}
    for rank, tier in tiers.items():
        if idle := sorted(step for step in tier.idle if step < end.get(rank, step + 1)):
            story = f"{what} outside the model differ in {steps_text(idle)}"
            stories.setdefault(f"{story}, and lead to no other difference", []).append(rank)
    return _told(stories, len(tiers))


def _told(stories: dict[str, list[int]], num_ranks: int) -> list[str]:
    return [
        story if len(ranks) == num_ranks else f"{ranks_text(ranks)}: {story}"
        for story, ranks in stories.items()
    ]


def _generator_notes(tiers: Tiers) -> list[str]:
    """Name generators that differ and are drawn from, though no tensor shows it.

    Generators that nobody seeded and nobody uses differ in any two runs: they are not named.
    """
    first = {rank: tier.first_with("generator") for rank, tier in tiers.items()}
    differing = [(rank, step) for rank, step in first.items() if step is not None]
    for rank, step in differing[:_LOOKED_AT_RANKS]:
        used = tiers[rank].generators_drawn_from()
        names = [name for name in tiers[rank].generators_that_differ(step) if name in used]
        tiers[rank].release()
        if names:
            text = f"generator {', '.join(names)} differs from step {step} on (rank {rank}) and is"
            return [f"{text} drawn from, but no recorded tensor differs"]
    return []


def _diverged(origins: list[Origin], groups: list[OriginGroup], attribution: Attribution) -> str:
    if not origins:
        # The origin is on a rank that was not compared: all that is known is how it came here.
        first = min(attribution.receivers, key=lambda r: (r.step, r.rank))
        return f"rank {first.rank}, step {first.step}: received through {first.via}"
    origin, count = origins[0], attribution.num_origins
    where = f"rank {origin.rank}, step {origin.step}, {origin.phase}"
    more = f"; the first of {count:,} origins" if count > 1 else ""
    if len(groups) < count == sum(group.count for group in groups):
        more += f" in {counted(len(groups), 'group')}"
    return f"{where}: {origin.summary} ({origin.class_}{more})"


def _identical(compared: Compared) -> str:
    first, last = compared.steps
    span = steps_text([first] if first == last else [first, last]).replace(", ", "-")
    return (
        f"identical: {counted(compared.events, 'event')} on {counted(len(compared.ranks), 'rank')}"
        f" over {counted(compared.num_steps, 'step')} ({span}), rung {compared.rung}"
    )
