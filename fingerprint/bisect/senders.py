"""Ranks whose differences led to something on another rank alone.

What differs outside of the modules and nothing reads does not count (see `find_origins`), and what
a rank sends is such a thing, unless it counts where it was received.
"""

from collections import defaultdict
from collections.abc import Mapping

from fpdiff.fingerprint.bisect.findings import RankFindings, examine, given
from fpdiff.fingerprint.bisect.meetings import Meeting
from fpdiff.fingerprint.bisect.tier import RankTier

_At = tuple[int, int]
"""(rank, step)."""


def with_senders(found: list[RankFindings], tiers: Mapping[int, RankTier]) -> list[RankFindings]:
    """Return findings with those of the ranks that sent what others received.

    Args:
        found: of every rank that differs by itself.
        tiers: of every rank compared.

    Raises:
        StoreError: a file is damaged.
    """
    by_rank = {f.rank: f for f in found}
    used: dict[_At, frozenset[Meeting]] = {}
    given_by: dict[_At, frozenset[Meeting]] = {}
    todo = list(found)
    while todo:
        asked: dict[_At, frozenset[Meeting]] = defaultdict(frozenset)
        received = {(c.meeting, f.step) for f in todo for c in f.candidates if c.meeting}
        for meeting, step in received:
            for rank in meeting.ranks:
                asked[rank, step] |= meeting.among(_idle(rank, step, by_rank, tiers, given_by))
        todo = []
        for (rank, step), meetings in asked.items():
            before = used.get((rank, step), frozenset())
            if meetings <= before:
                continue
            used[rank, step] = before | meetings
            again = examine(rank, step, tiers[rank], used[rank, step])
            tiers[rank].release()
            if again is not None:
                by_rank[rank] = again
                todo.append(again)
    return [by_rank[rank] for rank in sorted(by_rank)]


def _idle(
    rank: int,
    step: int,
    found: Mapping[int, RankFindings],
    tiers: Mapping[int, RankTier],
    given_by: dict[_At, frozenset[Meeting]],
) -> frozenset[Meeting]:
    """Return the collectives to which a rank gave what differs and led to nothing on it."""
    own = found.get(rank)
    if own is not None and own.step <= step:
        return own.idle if own.step == step else frozenset()
    tier = tiers.get(rank)
    if tier is None or step not in tier.differences:
        return frozenset()
    if (rank, step) not in given_by:
        given_by[rank, step] = given(tier.aligned(step))
        tier.release()
    return given_by[rank, step]
