"""The loss, the learning rate and the logged numbers that differ, each where it first does.

The learning rate is an option of the optimizer; it is looked for where the runs part ways.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from fpdiff.fingerprint.bisect.arm import Site
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import Metric

MAX_EVENTS = 4_000_000
"""Step rows do not say which logged number differs: so many events are read to find out."""


def find_metrics(tiers: dict[int, RankTier]) -> list[Metric]:
    """Return the numbers that differ, the earliest first.

    A step is read only if it may hold one that is not known yet to differ earlier.

    Raises:
        StoreError: a file is damaged.
    """
    found: dict[str, Metric] = {}
    names: dict[int, set[str]] = {}
    budget = MAX_EVENTS
    # The loss's own group in the step rows says where it first differs: one read settles it.
    losses = [
        (s, rank, True) for rank, t in tiers.items() if (s := t.first_with("loss")) is not None
    ]
    parted = [
        (s, rank, True) for rank, t in tiers.items() if (s := t.first_with("any")) is not None
    ]
    for step, rank, is_sure in chain(sorted(parted)[:1], sorted(losses)[:1], _logged(tiers)):
        tier = tiers[rank]
        if not is_sure:
            if budget <= 0:
                break
            if rank not in names:
                names[rank] = {site["slot"] for site in tier.sites_having("metric")}
            if names[rank] <= found.keys():
                continue
        budget -= 2 * tier.num_events_of(step)
        for metric in _metrics_of(rank, tier, step):
            found.setdefault(metric.name, metric)
        tier.release()
    return sorted(found.values(), key=lambda m: (m.name != "loss", m.step, m.rank))


def _logged(tiers: dict[int, RankTier]) -> Iterator[tuple[int, int, bool]]:
    """Yield (step, rank, False) for the steps in which logged numbers differ, in this order."""
    steps = {rank: tier.differences.having("metrics") for rank, tier in tiers.items()}
    steps = {rank: found for rank, found in steps.items() if len(found)}
    if steps:
        step = np.concatenate(list(steps.values()))
        rank = np.repeat(list(steps), [len(found) for found in steps.values()])
        for at in np.lexsort((rank, step)):
            yield int(step[at]), int(rank[at]), False


def _is_metric(site: Site) -> bool:
    if site["kind"] == "option":
        return str(site["slot"]).endswith(".lr")
    return site["kind"] in ("loss", "metric")


def _metrics_of(rank: int, tier: RankTier, step: int) -> list[Metric]:
    aligned = tier.aligned(step)
    rows = ~aligned.equal & aligned.paired & aligned.having(_is_metric)
    metrics = []
    for row in np.flatnonzero(rows).tolist():
        site = aligned.site(row)
        a, b = (
            arm.table["value"][int(index[row])].as_py()
            for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b))
        )
        name = "loss" if site["kind"] == "loss" else site["slot"]
        metrics.append(Metric(name=name, step=step, rank=rank, a=a, b=b))
    return metrics
