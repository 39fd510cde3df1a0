"""Every rank of the job is there, and all have the same steps."""

from collections.abc import Iterable
from itertools import pairwise

from fpdiff.fingerprint.bisect.wording import counted, steps_text
from fpdiff.fingerprint.certify.ledger import Ledger
from fpdiff.fingerprint.certify.rank import Rank
from fpdiff.store.run import Run


def check_presence(run: Run, ranks: list[Rank], ledger: Ledger) -> str:
    """Check a run's ranks against the job's size and against one another.

    Returns:
        What the check rests on, "" if there was nothing to check.
    """
    size = world_size(ranks)
    known = {rank.rank for rank in ranks}
    if size is not None:
        for number in sorted(set(_wanted(run, size)) - known):
            ledger.add("presence", f"the rank is missing; the job has {size:,}", rank=number)
    rows = [rank for rank in ranks if rank.has_rows]
    # How far each open or stopped rank has come is told where its ending is.
    ends = {rank.rank: rank.state == "finished" for rank in rows}
    expected = sorted({step for rank in rows for step in rank.whole_steps()})
    for rank in rows:
        own = set(rank.steps)
        last = rank.steps[-1] if rank.steps else -1
        for step in expected:
            if step not in own and (ends[rank.rank] or step < last):
                ledger.add(
                    "presence",
                    "the step is missing; other ranks have it",
                    rank=rank.rank,
                    step=step,
                )
    told = (
        "the job's size is not known"
        if size is None
        else f"{len(known):,} of {counted(size, 'rank')}"
    )
    return f"{told}, {steps_text(expected)}" if rows else ""


def world_size(ranks: Iterable[Rank]) -> int | None:
    """Return the number of ranks of the job, None if none of them knew it.

    A rank that ended early may not have seen the process group yet, so the largest counts; ranks
    that a launcher started side by side without a process group know nothing of one another.
    """
    ranks = list(ranks)
    size = max((rank.world_size for rank in ranks if rank.world_size is not None), default=None)
    if size is None or any(rank.rank >= size for rank in ranks):
        return None
    return size


def gaps(ranks: list[Rank]) -> str:
    """Return a remark on numbers that no rank has between the first step and the last."""
    have = {step for rank in ranks for step in rank.steps}
    if not have or max(have) - min(have) + 1 == len(have):
        return ""
    ordered = sorted(have)
    missing = [
        str(a + 1) if b == a + 2 else f"{a + 1}-{b - 1}" for a, b in pairwise(ordered) if b > a + 1
    ]
    shown = ", ".join(missing[:8]) + (" and more" if len(missing) > 8 else "")
    return f"no rank has a step numbered {shown}"


def _wanted(run: Run, size: int) -> Iterable[int]:
    window = window_of(run, "ranks")
    return (n for n in range(size) if not window or any(a <= n < b for a, b in window))


def window_of(run: Run, name: str) -> list[tuple[int, int]]:
    """Return the half-open ranges that a run was narrowed to, empty if it was not."""
    found = run.settings.get(name)
    pairs = found if isinstance(found, list) else []
    return [
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)
    ]
