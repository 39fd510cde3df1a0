"""Runs named on the command line, and the labels they get."""

from pathlib import Path

from fpdiff.store.bucket import is_url
from fpdiff.store.run import Run


def open_runs(paths: list[str]) -> dict[str, Run]:
    """Return the runs at `paths`, in order, by label.

    Raises:
        StoreError: one of them is not a run.
    """
    runs = [Run.open(path) for path in paths]  # A name that is none has no label.
    return dict(zip(labels(paths), runs, strict=True))


def labels(paths: list[str]) -> list[str]:
    """Return a short, unique label for each path.

    The folder's name; where two are alike, as many folders above it as tell them apart; for the
    same folder named twice, letters.
    """
    parts = [_parts(path) for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [_letters(number) for number in range(len(paths))]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.rstrip("/").split("/")) if is_url(path) else Path(path).resolve().parts


def _letters(number: int) -> str:
    head, tail = divmod(number, 26)
    return (_letters(head - 1) if head else "") + chr(ord("a") + tail)
