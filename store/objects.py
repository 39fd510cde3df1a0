"""Runs on object storage, as readers see them: listed once, fetched file by file when read.

What was fetched is kept below the temporary folder until the run is let go, since a comparison
reads several columns of a file one after another.
"""

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fpdiff.store.bucket import ObjectFolder
from fpdiff.store.errors import BucketError


class Listing:
    """What a run on object storage consisted of when it was opened."""

    def __init__(self, folder: ObjectFolder, sizes: dict[str, int]) -> None:
        """Hold the sizes of all objects; use `of`."""
        self.folder = folder
        self.sizes = sizes
        try:
            self.cache = Path(tempfile.mkdtemp(prefix="fpdiff-"))
        except OSError as error:
            raise BucketError(
                f"there is no folder to keep files of {folder.url} in: {error}; set TMPDIR to one"
            ) from error
        weakref.finalize(self, shutil.rmtree, self.cache, ignore_errors=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process see the same objects, and fetch them itself."""
        return Listing.again, (self.folder.url, self.sizes)

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> "Listing":
        """List a run; nothing is listed if there is no run.json, what lies there may be vast.

        Raises:
            BucketError: the storage refuses, cannot be reached, or has no such bucket.
        """
        folder = ObjectFolder(url)
        return cls(folder, folder.sizes() if folder.has("run.json") else {})

    @classmethod
    def again(cls, url: str, sizes: dict[str, int]) -> "Listing":
        """Return the listing that another process has made."""
        return cls(ObjectFolder(url), sizes)

    @cached_property
    def children(self) -> dict[str, dict[str, None]]:
        """The names in each folder."""
        found: dict[str, dict[str, None]] = {}
        for key in self.sizes:
            while key:
                key, _, name = key.rpartition("/")
                found.setdefault(key, {})[name] = None
        return found

    def fetch(self, key: str) -> Path:
        """Return the local copy of an object, fetched if need be.

        Raises:
            FileNotFoundError: the object is gone.
            BucketError: the storage refuses or cannot be reached, or there is no room.
        """
        path = self.cache / key
        if not path.exists():
            content = self.folder.read(key)
            try:
                _put(path, content)
            except OSError as error:
                raise BucketError(
                    f"{self.folder.url}/{key} cannot be kept in {self.cache}:"
                    f" {error.strerror or error}; set TMPDIR to a folder with more room"
                ) from error
        return path

    def end_of(self, key: str, num_bytes: int) -> bytes | None:
        """Return the last bytes of an object; None if it is small, or fetched already.

        Raises:
            FileNotFoundError: the object is gone.
            BucketError: the storage refuses or cannot be reached.
        """
        start = self.sizes[key] - num_bytes
        if start <= 0 or (self.cache / key).exists():
            return None
        return self.folder.read(key, start)


@dataclass(frozen=True)
class ObjectPath:
    """A file or folder of a run on object storage; as much of a pathlib.Path as readers use."""

    listing: Listing = field(repr=False)
    key: str = ""

    def __truediv__(self, name: str) -> "ObjectPath":
        """Return what is called `name` in this folder."""
        return ObjectPath(self.listing, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        """Return the address."""
        return f"{self.listing.folder.url}/{self.key}".rstrip("/")

    def exists(self) -> bool:
        """Return whether it was listed."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether it was listed as an object."""
        return self.key in self.listing.sizes

    def is_dir(self) -> bool:
        """Return whether objects were listed below it."""
        return self.key in self.listing.children


def _put(path: Path, content: bytes) -> None:
    """Write a file that appears whole, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
