"""How files of a run become visible: whole, or not at all."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpdiff.store.places import Place, names_in

JSON_SLACK_BYTES = 4096
"""Spaces behind a JSON file's text: a later, longer text still fits when the disk is full."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name; on success rename it to `path`, else remove it.

    Raises:
        OSError: the folder is not writable or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def attempts(root: Place) -> list[str]:
    """Return the names of a run's later attempts, which are runs of their own, in order."""
    names = [name for name in names_in(root) if name.startswith("attempt=")]
    found = [name for name in names if (root / name / "run.json").is_file()]
    return sorted(found, key=lambda name: (len(name), name))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as JSON under `path`, replacing what was there in one step.

    On a full disk an existing file is overwritten in place instead, inside the slack that it was
    written with, so that a run can still say where and why its recording stopped.

    Raises:
        OSError: neither way worked.
    """
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    try:
        with replacing(path) as temporary:
            temporary.write_text(text + " " * JSON_SLACK_BYTES + "\n")
    except OSError:
        if not path.exists():  # There is nothing to write over.
            raise
        _overwrite(path, text.encode())


def _overwrite(path: Path, text: bytes) -> None:
    room = path.stat().st_size
    if len(text) > room:
        raise OSError(f"no room left on the disk for {path}")
    with path.open("r+b") as file:
        file.write(text.ljust(room))
