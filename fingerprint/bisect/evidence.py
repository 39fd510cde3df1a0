"""Observations that bear on an origin, one function for each, as sentences."""

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import (
    Site,
    is_batch,
    is_collective,
    is_frozen,
    is_kind,
    is_outside,
)
from fpdiff.fingerprint.bisect.classify import described
from fpdiff.fingerprint.bisect.tier import RankTier

_MAX_NAMES = 3


def trained(aligned: Aligned, site: Site) -> list[str]:
    """Name the parameters that get a gradient in one run alone, where other ones are frozen."""
    if not is_frozen(site):
        return []
    lacking = ~aligned.paired & aligned.having(_is_own_gradient)
    found = []
    for run, index in (("A", aligned.index_a), ("B", aligned.index_b)):
        own = [aligned.site(row) for row in np.flatnonzero(lacking & (index >= 0)).tolist()]
        names = [f"{s['module']}.{s['slot'].removeprefix('grad.')}".lstrip(".") for s in own]
        found += [f"only {run} trains {listed(sorted(set(names)))}"] if names else []
    return found


def collectives_beside(aligned: Aligned) -> list[str]:
    """Name the first collective outside the model that differs."""
    differs = ~aligned.equal & aligned.having(is_collective)
    rows = np.flatnonzero(differs & aligned.having(is_outside))
    if not len(rows):
        return []
    only = "" if aligned.paired[rows[0]] else ", in one run only"
    site = aligned.site(int(rows[0]))
    return [f"of the collectives outside the model the first to differ{only}: {described(site)}"]


def equal_beside(aligned: Aligned, row: int) -> list[str]:
    """Name what is equal of the batch that a row's event is a part of."""
    own = aligned.site(row)
    if not is_batch(own):
        return []
    same = aligned.having(is_batch) & (aligned.microbatches == aligned.microbatches[row])
    sites = [aligned.site(other) for other in np.flatnonzero(same & aligned.equal).tolist()]
    call = ("phase", "module", "call")
    names = [s["slot"] for s in sites if all(s[name] == own[name] for name in call)]
    return [f"equal in this batch: {listed(names)}"] if names else []


def other_microbatch(aligned: Aligned, row: int) -> str | None:
    """Say in which microbatch of A's step the batch of B was seen, if in any."""
    site, wanted = aligned.site(row), int(aligned.index_b[row])
    if not is_batch(site) or wanted < 0:
        return None
    batches = aligned.a.sites.having(is_batch)[aligned.a.site]
    for index in np.flatnonzero(batches).tolist():
        own = aligned.a.site_of(index)
        same = (own["module"], own["slot"]) == (site["module"], site["slot"])
        if same and aligned.a.content_of(index) == aligned.b.content_of(wanted):
            numbers = aligned.b.microbatch[wanted], aligned.a.microbatch[index]
            return "microbatch {} of B has the batch of microbatch {} of A".format(*numbers)
    return None


def tied(aligned: Aligned, site: Site, row: int) -> str | None:
    """Say which parameter of both runs holds the bits of one that only one run has."""
    if aligned.paired[row]:
        return None
    own, index = aligned.arm_of(row)
    run, other = ("A", "B") if own is aligned.a else ("B", "A")
    for peer in np.flatnonzero(aligned.equal & aligned.having(is_kind(site["kind"]))).tolist():
        at = int((aligned.index_a if own is aligned.a else aligned.index_b)[peer])
        there = own.site_of(at)
        if there["phase"] == "init" and own.content_of(at) == own.content_of(index):
            name = f"{there['module']}.{there['slot']}".lstrip(".")
            return f"it holds the bits of {name} in {run}: is it tied to that in {other}?"
    return None


def since(tier: RankTier, step: int, site: Site) -> list[str]:
    """Say since when a part of the state differs, if not from the first step compared."""
    before = tier.num_steps_before(step)
    if not before:
        return []
    last = int(tier.steps[before - 1])
    if not tier.has_at(last, site):
        return [f"step {last} compared equal, but does not hold this: it may differ for longer"]
    how = "this changed after it, or in it by something that was not recorded"
    return [f"step {last} compared equal: {how}"]


def listed(names: list[str]) -> str:
    """Name the first of them, and say how many more there are."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _is_own_gradient(site: Site) -> bool:
    return bool(site["kind"] == "local_gradient")
