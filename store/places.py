"""Where a run may be: in a folder, or on object storage. What readers ask of both."""

import os
from pathlib import Path
from typing import IO, TypeAlias

from fpdiff.store.bucket import is_url
from fpdiff.store.objects import Listing, ObjectPath

Place: TypeAlias = Path | ObjectPath


def place(path: str | os.PathLike[str] | Place) -> Place:
    """Return a run's place; one on object storage is listed.

    Raises:
        BucketError: the storage refuses, cannot be reached, or has no such bucket.
    """
    if isinstance(path, ObjectPath):
        return path
    return ObjectPath(Listing.of(path)) if is_url(path) else Path(path)


def local(file: Place) -> Path:
    """Return where a file can be read, which is fetched if need be.

    Raises:
        BucketError: it cannot be fetched.
    """
    return file.listing.fetch(file.key) if isinstance(file, ObjectPath) else file


def open_file(path: Path, buffering: int = -1) -> IO[bytes]:
    """Open a local file for reading; what is none, a pipe say, is not waited for and empty."""
    return open(path, "rb", buffering, opener=_open_at_once)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def announce(file: Place) -> None:
    """Have a local file brought into memory meanwhile, where the system knows how."""
    if isinstance(file, Path) and hasattr(os, "posix_fadvise"):
        with open_file(file, buffering=0) as raw:
            os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def end_of(file: Place, num_bytes: int) -> bytes | None:
    """Return the last bytes of a large file that would have to be fetched, else None.

    Raises:
        BucketError: they cannot be fetched.
    """
    return file.listing.end_of(file.key, num_bytes) if isinstance(file, ObjectPath) else None


def local_folder(root: Place) -> Path:
    """Return the folder that has all of a run's files that `local` has returned."""
    return root.listing.cache / root.key if isinstance(root, ObjectPath) else root


def names_in(folder: Place) -> list[str]:
    """Return what is in a folder; nothing if there is none."""
    if isinstance(folder, ObjectPath):
        return list(folder.listing.children.get(folder.key, ()))
    return os.listdir(folder) if folder.is_dir() else []


def size_of(file: Place) -> int:
    """Return a file's size in bytes."""
    if not isinstance(file, ObjectPath):
        return file.stat().st_size
    if not file.is_file():
        raise FileNotFoundError(str(file))
    return file.listing.sizes[file.key]


def sizes_in(folder: Place) -> dict[str, int]:
    """Return the names in a folder, with the sizes of what they are."""
    if isinstance(folder, ObjectPath):
        return {n: folder.listing.sizes.get((folder / n).key, 0) for n in names_in(folder)}
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}
