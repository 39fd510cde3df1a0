"""Copies a run's folder to object storage, in an order in which it can be read at any moment.

An object appears whole or not at all, so the order is what matters: run.json comes first and takes
the place; a segment's `events` come after its other two files and commit it, as in the folder; what
a rank says of itself comes after its segments, so one that says it has finished is there whole; and
the run.json that says that the command has ended comes last.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpdiff.store.bucket import ObjectFolder, is_url
from fpdiff.store.checks import mapping
from fpdiff.store.errors import StoreError
from fpdiff.store.files import attempts, write_json
from fpdiff.store.progress import Progress
from fpdiff.store.run import Run
from fpdiff.store.schema import CONTENTS, TABLES, rank_name


def upload_run(
    path: str | os.PathLike[str], address: str, *, progress: Progress | None = None
) -> str:
    """Copy a run to object storage, or what is not there yet.

    Args:
        path: folder of the run.
        address: `s3://BUCKET/FOLDER`.
        progress: called with (files done, files in all).

    Returns:
        The address as it is written best.

    Raises:
        StoreError: the folder is no run, or something else is at the address.
        BucketError: the storage refuses or cannot be reached.
    """
    if is_url(path):
        raise StoreError(f"{os.fspath(path)} is on object storage: give the folder of a run")
    upload = Upload(Path(path), address)
    Run.open(path)  # Else the folder holds none.
    upload.resume()
    upload.everything(progress)
    return upload.target.url


_Part = tuple[Path, bytes | None]
"""A file, and its content if that may change while others are copied."""


class Upload:
    """The copy of one run's folder; what is there already is not sent again.

    Raises (every method):
        BucketError: the storage refuses or cannot be reached.
        OSError: a file of the run cannot be read.
    """

    def __init__(self, root: Path, url: str) -> None:
        """Remember both ends.

        Args:
            root: the run's folder, which holds its run.json.
            url: `s3://BUCKET/FOLDER`.
        """
        self.root = root
        self.target = ObjectFolder(url)
        self._sizes: dict[str, int] = {}  # of objects that never change
        self._texts: dict[str, bytes] = {}

    def claim(self, *, rank: int | None = None, force: bool = False) -> None:
        """Take the place with the run's run.json, or join the ranks of the same launch there.

        Args:
            rank: this process's rank if others of its launch write to the same place.
            force: remove another run that is there.

        Raises:
            StoreError: something else is there.
        """
        if (there := self._there("run.json")) is not None:
            if rank is not None and self._can_join(there, rank):
                write_json(self.root / "run.json", there)
                return
            if not force:
                raise StoreError(
                    f"{self.target.url} exists: give another --out, or --force to replace that run"
                )
            if rank is not None:
                raise StoreError(
                    f"{self.target.url} exists, and ranks that start one by one cannot agree on who"
                    " replaces it: remove it first"
                )
            self.withdraw()
        elif self.target.names():
            raise StoreError(f"{self.target.url} exists and is not a run: give another address")
        self._put(self.root / "run.json")

    def resume(self) -> None:
        """Take the place, or go on with the same run there.

        Raises:
            StoreError: something else is there.
        """
        there = self._there("run.json")
        if there is None:
            self.claim()
        elif not self._is_same_run(there):
            raise StoreError(f"{self.target.url} holds another run: give another address")
        else:
            self._sizes = self.target.sizes()

    def withdraw(self) -> None:
        """Remove what is there of a run; anything else stays."""
        present = self.target.names()
        # First what makes a run of it: nobody reads half of one.
        for name in sorted(present, key=lambda name: name != "run.json"):
            if name in CONTENTS or name.startswith("attempt="):
                self.target.remove(name)

    def committed(self) -> None:
        """Copy the segments that are committed so far, and what the ranks say of themselves."""
        for path, content in self._parts():
            self._put(path, content)

    def everything(self, progress: Progress | None = None) -> None:
        """Copy all that the run consists of; the command that was recorded has ended.

        Args:
            progress: called with (files done, files in all).
        """
        parts = [*self._parts(has_ended=True), (self.root / "run.json", None)]
        for done, (path, content) in enumerate(parts, 1):
            self._put(path, content)
            if progress is not None:
                progress(done, len(parts))

    def _parts(self, *, has_ended: bool = False) -> Iterator[_Part]:
        for folder in (self.root, *(self.root / name for name in attempts(self.root))):
            # What ranks say is read first: one that says that it has finished has no file to come.
            said = [(path, path.read_bytes()) for path in sorted(folder.glob("ranks/rank=*.json"))]
            if folder != self.root:
                yield folder / "run.json", None
            for events in sorted(folder.glob("events/rank=*/seg-*.parquet")):
                for name in sorted(TABLES, key=lambda name: name == "events"):
                    yield folder / name / events.parent.name / events.name, None
            if has_ended:
                # Of ranks that were killed: their last steps.
                yield from ((p, None) for p in sorted(folder.glob("journal/rank=*/seg-*.arrows")))
                yield from ((p, None) for p in sorted(folder.glob("compact/*.parquet")))
                yield from ((p, None) for p in sorted(folder.glob("compact/index.json")))
            yield from said

    def _put(self, path: Path, content: bytes | None = None) -> None:
        key = path.relative_to(self.root).as_posix()
        if path.suffix == ".json":
            content = path.read_bytes() if content is None else content
            if self._texts.get(key) != content:
                self.target.write(key, content)
                self._texts[key] = content
        elif self._sizes.get(key) != (size := path.stat().st_size):
            self.target.write(key, path.read_bytes())
            self._sizes[key] = size

    def _info(self) -> dict[str, Any]:
        return _parsed((self.root / "run.json").read_bytes())

    def _there(self, key: str) -> dict[str, Any] | None:
        return _parsed(self.target.read(key)) if self.target.has(key) else None

    def _can_join(self, there: dict[str, Any], rank: int) -> bool:
        launch = self._info().get("launch")
        same = bool(launch) and there.get("launch") == launch
        return same and not self.target.has(f"ranks/{rank_name(rank)}.json")

    def _is_same_run(self, there: dict[str, Any]) -> bool:
        own = self._info()
        if not own.get("launch"):
            return there.get("created") == own.get("created")
        # Each rank's launcher has its own moment, and launches may be named alike.
        return there.get("launch") == own["launch"] and all(
            self._is_same_rank(path) for path in self.root.glob("ranks/rank=*.json")
        )

    def _is_same_rank(self, path: Path) -> bool:
        there = self._there(path.relative_to(self.root).as_posix())
        return there is None or _process(there) == _process(_parsed(path.read_bytes()))


def _parsed(text: bytes) -> dict[str, Any]:
    """Return what a run.json says; nothing if it is none, which is no run that anybody has made."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return mapping(content)


def _process(info: dict[str, Any]) -> tuple[Any, Any]:
    """Return which process a rank was."""
    known = mapping(info.get("environment"))
    return known.get("hostname"), known.get("pid")
