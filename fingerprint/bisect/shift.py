"""The same batch at another step: data that is shifted or repeated."""

from collections import defaultdict

from fpdiff.fingerprint.bisect.tier import RankTier


def describe_shift(tier: RankTier, step: int) -> str | None:
    """Say where else a batch that differs at `step` was seen, or None.

    Run B's batches from `step` on are looked for among A's at a constant distance, and A's among
    B's. Only step rows are read.
    """
    a, b = (
        {number: row["content_batch"] for number, row in rows.items() if row["content_batch"]}
        for rows in tier.rows
    )
    for name, other, here, there in (("B", "A", b, a), ("A", "B", a, b)):
        found = _distance(here, there, step)
        if found is not None:
            distance, matching, total = found
            return (
                f"{name} repeats {other}'s batches shifted by {distance:+d} from step {step} on"
                f" ({matching} of {total} steps)"
            )
    return None


def _distance(
    here: dict[int, object], there: dict[int, object], step: int
) -> tuple[int, int, int] | None:
    steps_of = defaultdict(list)
    for number, digest in there.items():
        steps_of[digest].append(number)
    candidates = [n - step for n in steps_of.get(here.get(step), []) if n != step]
    later = [number for number in here if number >= step]
    best = None
    for distance in sorted(candidates, key=abs):
        reachable = [n for n in later if n + distance in there]
        matching = sum(here[n] == there[n + distance] for n in reachable)
        if best is None or matching > best[1]:
            best = (distance, matching, len(reachable))
    return best
