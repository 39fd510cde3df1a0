"""The same batch at another step: data that is shifted or repeated."""

from collections import defaultdict

from fpdiff.fingerprint.bisect.tier import RankTier

_MAX_DISTANCES = 64
"""So many distances are tried, the shortest first: batches that repeat all the time have many."""


def describe_shift(tier: RankTier, step: int) -> str | None:
    """Say where else a batch that differs at `step` was seen, or None.

    Run B's batches from `step` on are looked for among A's at a constant distance, and A's among
    B's. Only step rows are read.
    """
    a, b = tier.batches()
    for name, other, here, there in (("B", "A", b, a), ("A", "B", a, b)):
        found = _distance(here, there, step)
        if found is not None:
            distance, matching, total = found
            steps = "1 step" if total == 1 else f"{total} steps"
            return (
                f"{name} repeats {other}'s batches shifted by {distance:+d} from step {step} on:"
                f" step {step} of {name} has the batch of step {step + distance} of {other}"
                f" ({matching} of {steps} match)"
            )
    return None


def _distance(
    here: dict[int, bytes], there: dict[int, bytes], step: int
) -> tuple[int, int, int] | None:
    """Return (distance, steps that match at it, steps that could) of the best one."""
    steps_of = defaultdict(list)
    for number, digest in there.items():
        steps_of[digest].append(number)
    wanted = here.get(step)
    found = steps_of.get(wanted, []) if wanted is not None else []
    candidates = sorted((n - step for n in found if n != step), key=abs)[:_MAX_DISTANCES]
    later = [number for number in here if number >= step]
    best = None
    for distance in candidates:
        reachable = [n for n in later if n + distance in there]
        matching = sum(here[n] == there[n + distance] for n in reachable)
        if best is None or matching > best[1]:
            best = (distance, matching, len(reachable))
    return best
