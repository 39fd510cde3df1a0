"""The whole way from two runs to a verdict."""

from collections.abc import Callable

import numpy as np

from fpdiff.fingerprint.bisect import advice
from fpdiff.fingerprint.bisect.align import Keys
from fpdiff.fingerprint.bisect.attribute import Attribution, RankFindings
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.origins import find_origins
from fpdiff.fingerprint.bisect.preflight import Common, Ranges, preflight
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import (
    Compared,
    Effects,
    Metric,
    Origin,
    RankStep,
    Verdict,
)
from fpdiff.store.errors import CompareError
from fpdiff.store.run import Run

MAX_ORIGINS = 200
"""A verdict lists so many origins at most; `num_origins` says how many there are."""


def compare_runs(
    a: Run,
    b: Run,
    *,
    steps: Ranges = (),
    ranks: tuple[int, ...] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Compare two runs.

    Args:
        a: the run that is taken as the reference.
        b: the other.
        steps: compare only these, half-open ranges; all if empty.
        ranks: compare only these; all if empty.
        progress: called with (ranks done, ranks in all).

    Raises:
        StoreError: a run cannot be read.
        CompareError: nothing that both hold can be compared.
    """
    common = preflight(a, b, ranks)
    rungs_differ = a.info["level"] != b.info["level"]
    lens = Lens(common.rung if rungs_differ else None, tuple(common.modules))
    keys = Keys()
    tiers: dict[int, RankTier] = {}
    for done, rank in enumerate(common.ranks):
        tiers[rank] = RankTier(a.ranks[rank], b.ranks[rank], lens=lens, keys=keys, steps=steps)
        _ = tiers[rank].differences
        if progress is not None:
            progress(done + 1, len(common.ranks))
    compared = _compared(common, tiers)
    notes = common.notes + _length_notes(tiers, windowed=bool(steps))
    found = [f for rank in common.ranks if (f := _first_finding(rank, tiers[rank], notes))]
    notes += _generator_notes(tiers) if not found else []
    attribution = Attribution(found, rung=common.rung, environment=common.environment)
    origins, receivers = attribution.attribute()
    effects = _effects(tiers, found)
    return Verdict(
        verdict="diverged" if found else "identical",
        summary=_summary(origins, compared) if found else _identical(compared),
        a=str(a.path),
        b=str(b.path),
        compared=compared,
        first_step=min((f.step for f in found), default=None),
        origins=origins[:MAX_ORIGINS],
        num_origins=len(origins),
        receivers=receivers,
        rank_steps=[_rank_step(f) for f in found],
        effects=effects,
        metrics=_metrics(tiers),
        environment=common.environment,
        blind_spots=common.blind_spots,
        notes=notes,
        next=advice.next_command(b, common.rung, origins),
    )


def _compared(common: Common, tiers: dict[int, RankTier]) -> Compared:
    steps = sorted({step for tier in tiers.values() for step in tier.steps})
    events = sum(tier.num_events for tier in tiers.values())
    if not steps or not events:
        raise CompareError(
            "the two runs have no closed step in common: record steps of the same numbers"
            " (--steps, --first-step)"
        )
    return Compared(
        rung=common.rung,
        ranks=common.ranks,
        steps=[steps[0], steps[-1]],
        num_steps=max(len(tier.steps) for tier in tiers.values()),
        events=events,
    )


def _first_finding(rank: int, tier: RankTier, notes: list[str]) -> RankFindings | None:
    """Return the first step of a rank in which something that counts differs."""
    for step, difference in tier.differences.items():
        if not difference.any:
            continue
        aligned = tier.aligned(step)
        findings = find_origins(aligned)
        found = RankFindings(rank, step, tier, aligned, findings)
        if findings.mismatched.size or not (aligned.same_order or findings.num_evaluations):
            return found
        if findings.num_evaluations:
            notes.append(
                f"rank {rank}: only one run evaluated the model in step {step}"
                f" ({findings.num_evaluations} events): nothing else differs there"
            )
    return None


def _effects(tiers: dict[int, RankTier], found: list[RankFindings]) -> Effects:
    def first(what: str) -> int | None:
        steps = [s for t in tiers.values() if (s := t.first_with(what)) is not None]
        return min(steps, default=None)

    last_differs = any(
        tier.steps and tier.steps[-1] in tier.differences and tier.differences[tier.steps[-1]].any
        for tier in tiers.values()
    )
    return Effects(
        loss=first("loss"), parameters=first("parameters"), healed=bool(found) and not last_differs
    )


def _metrics(tiers: dict[int, RankTier]) -> list[Metric]:
    """Return the loss and the logged numbers that differ, each where it first does."""
    found: dict[str, Metric] = {}
    for rank, tier in tiers.items():
        for what in ("loss", "metrics"):
            step = tier.first_with(what)
            for metric in _metrics_of(rank, tier, step) if step is not None else []:
                known = found.get(metric.name)
                if known is None or metric.step < known.step:
                    found[metric.name] = metric
    return list(found.values())


def _metrics_of(rank: int, tier: RankTier, step: int) -> list[Metric]:
    aligned = tier.aligned(step)
    metrics: list[Metric] = []
    for row in np.flatnonzero(~aligned.equal & aligned.paired).tolist():
        site = aligned.site(row)
        if site["kind"] not in ("loss", "metric"):
            continue
        a, b = (
            arm.table["value"][int(index[row])].as_py()
            for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b))
        )
        name = "loss" if site["kind"] == "loss" else site["slot"]
        if name not in {metric.name for metric in metrics}:
            metrics.append(Metric(name=name, step=step, rank=rank, a=a, b=b))
    return metrics


def _length_notes(tiers: dict[int, RankTier], *, windowed: bool) -> list[str]:
    """Say where the runs cover other steps; ranks with the same story share a note."""
    stories: dict[str, list[int]] = {}
    for rank, tier in tiers.items():
        a, b = (sorted(rows) for rows in tier.rows)
        if a != b and not windowed:
            story = f"A has {_span(a)}, B has {_span(b)}: compared over {_span(tier.steps)}"
            stories.setdefault(story, []).append(rank)
    return [
        story if len(ranks) == len(tiers) else f"rank {', '.join(map(str, ranks))}: {story}"
        for story, ranks in stories.items()
    ]


def _generator_notes(tiers: dict[int, RankTier]) -> list[str]:
    """Name generators that differ and are drawn from, though no tensor shows it.

    Generators that nobody seeded and nobody uses differ in any two runs: they are not named.
    """
    for rank, tier in tiers.items():
        step = tier.first_with("generator")
        if step is None:
            continue
        used = tier.generators_drawn_from()
        names = [name for name in tier.generators_that_differ(step) if name in used]
        if names:
            text = f"generator {', '.join(names)} differs from step {step} on (rank {rank}) and is"
            return [f"{text} drawn from, but no recorded tensor differs"]
    return []


def _rank_step(found: RankFindings) -> RankStep:
    aligned, findings = found.aligned, found.findings
    return RankStep(
        rank=found.rank,
        step=found.step,
        steps_matched=sum(step < found.step for step in found.tier.steps),
        events=len(aligned),
        mismatched=len(findings.mismatched),
        only_a=int((aligned.index_b < 0).sum()),
        only_b=int((aligned.index_a < 0).sum()),
        carriers=findings.num_carriers,
    )


def _summary(origins: list[Origin], compared: Compared) -> str:
    if not origins:
        return "diverged through a rank that was not compared"
    first = origins[0]
    where = f"rank {first.rank}, step {first.step}, {first.phase}"
    return f"{where}: {first.summary} ({first.class_})"


def _identical(compared: Compared) -> str:
    return (
        f"identical: {compared.events:,} events on {_count(len(compared.ranks), 'rank')} over"
        f" {_count(compared.num_steps, 'step')} ({_span(compared.steps)}), rung {compared.rung}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _span(steps: list[int]) -> str:
    if not steps:
        return "no step"
    return f"step {steps[0]}" if steps[0] == steps[-1] else f"steps {steps[0]}-{steps[-1]}"
