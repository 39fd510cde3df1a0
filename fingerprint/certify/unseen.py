"""Blind spots, and what the settings left out: what no check can speak of."""

from collections import Counter
from collections.abc import Iterable, Iterator

from fpdiff.fingerprint.bisect.wording import ranks_text
from fpdiff.fingerprint.certify.presence import gaps, window_of
from fpdiff.fingerprint.certify.rank import Rank
from fpdiff.store.checks import text
from fpdiff.store.run import Run

_LEFT_OUT = {
    "step": "module outputs, operators and collectives are not recorded",
    "layer": "operators are not recorded, nor collectives that C++ calls (DDP's)",
}


def sum_blind_spots(ranks: Iterable[Rank]) -> dict[str, int]:
    """Return what was executed but not fingerprinted on all ranks, the most frequent first."""
    total: Counter[str] = Counter()
    for rank in ranks:
        total.update(rank.blind_spots)
    return dict(total.most_common())


def notes(run: Run, ranks: list[Rank]) -> Iterator[str]:
    """Yield what the settings left out, and what is worth knowing and is no finding."""
    level = text(run.info.get("level"))
    if level in _LEFT_OUT:
        yield f"rung {level}: {_LEFT_OUT[level]}"
    for name, last in (("steps", 0), ("ranks", 1)):
        if window := window_of(run, name):
            yield f"only {name} {_window(window, last)} were recorded, as the settings say"
    if modules := run.settings.get("modules"):
        yield f"only modules that match {modules!r} were recorded, as the settings say"
    if gap := gaps(ranks):
        yield gap
    tails: dict[int, list[int]] = {}
    for rank in ranks:
        if rank.tail is not None:
            tails.setdefault(rank.tail, []).append(rank.rank)
    for step, who in sorted(tails.items()):
        yield (
            f"step {step} ends with the program on {ranks_text(who)}: no optimizer's step ended it"
        )
    code = run.info.get("exit_code")
    if isinstance(code, int) and code != 0:
        yield f"the command ended with exit code {code}"


def _window(window: list[tuple[int, int]], closed: int) -> str:
    """Return half-open ranges as they are given: `10:20,400`, or closed ones as `0,3-5`."""
    separator = "-" if closed else ":"
    return ",".join(
        str(first) if end == first + 1 else f"{first}{separator}{end - closed}"
        for first, end in window
    )
