"""Microbatches that one arm of a step has in front of those that both have."""

import numpy as np

from fpdiff.fingerprint.bisect.arm import Arm, Flags, Ints, Site, is_batch

Batches = list[set[tuple[int, ...]]]
"""By microbatch, what the model was given."""


def behind(a: Arm, b: Arm) -> tuple[Arm, Arm]:
    """Number the microbatches that one arm has in front as if they came last.

    A model is tried out, say, or a warm-up was not undone. The batches tell: those of one arm are
    the last of the other. Else the first would pair with the first, and all would seem to differ.
    """
    of_a, of_b = _batches(a), _batches(b)
    if 0 < len(of_a) < len(of_b) and _ends_with(of_b, of_a):
        return a, _turned(b, len(of_b), len(of_b) - len(of_a))
    if 0 < len(of_b) < len(of_a) and _ends_with(of_a, of_b):
        return _turned(a, len(of_a), len(of_a) - len(of_b)), b
    return a, b


def _ends_with(more: Batches, fewer: Batches) -> bool:
    """Return whether some batches are the last of others, and not the first as well."""
    return more[-len(fewer) :] == fewer != more[: len(fewer)]


def _batches(arm: Arm) -> Batches:
    given = np.flatnonzero(arm.sites.having(_is_given)[arm.site])
    found: Batches = [
        set() for _ in range(int(arm.microbatch[given].max()) + 1 if len(given) else 0)
    ]
    for index in given.tolist():
        found[int(arm.microbatch[index])].add(arm.content_of(index))
    return found


def _is_given(site: Site) -> bool:
    return is_batch(site) and site["phase"] == "forward"


def _turned(arm: Arm, number: int, in_front: int) -> Arm:
    """Return an arm whose first microbatches have the last numbers.

    What runs outside of modules after the last event of theirs prepares those behind them.
    """
    own = arm.microbatch
    of_model = arm.sites.having(_is_of_model)[arm.site] & (own < in_front)
    given = arm.sites.having(_is_given)[arm.site]
    first, end = (int(np.flatnonzero(given & (own == m))[0]) for m in (0, in_front))
    index: Ints = np.arange(len(own))
    last = int(np.flatnonzero(of_model & (index < end))[-1])
    theirs: Flags = (index >= first) & (index <= last) & ~arm.sites.having(_is_start)[arm.site]
    return arm.with_microbatches(
        np.where(theirs, own + number - in_front, np.maximum(own - in_front, 0))
    )


def _is_of_model(site: Site) -> bool:
    return bool(site["phase"] in ("forward", "backward", "recompute"))


def _is_start(site: Site) -> bool:
    return bool(site["phase"] == "init")
