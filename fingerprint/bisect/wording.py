"""Numbers, ranks and steps as sentences name them."""

from collections.abc import Iterable

_MAX_STRETCHES = 8


def counted(number: int, noun: str) -> str:
    """Return `1 event` or `1,234 events`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def numbers_text(numbers: Iterable[int], most: int | None = _MAX_STRETCHES) -> str:
    """Return sorted numbers as `0-3, 7`.

    Args:
        numbers: sorted.
        most: so many stretches are shown, the first of them; all if None.
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    shown = ["-".join(map(str, part)) for part in parts[:most]]
    return ", ".join(shown) + (" and more" if len(shown) < len(parts) else "")


def ranks_text(ranks: list[int]) -> str:
    """Return `rank 3`, `ranks 0-3` or `no rank`."""
    return _named("rank", ranks)


def steps_text(steps: list[int]) -> str:
    """Return `step 3`, `steps 0-3` or `no step`."""
    return _named("step", steps)


def _named(noun: str, numbers: list[int]) -> str:
    if not numbers:
        return f"no {noun}"
    return f"{noun}{'s' if len(numbers) > 1 else ''} {numbers_text(numbers)}"
