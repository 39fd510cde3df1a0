"""Checks of what was read from disk: nothing there is trusted, every failure is one sentence."""

import contextlib
import functools
import json
from array import array
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from fpdiff.store.errors import FpdiffError, StoreError
from fpdiff.store.places import Place, local, open_file, size_of
from fpdiff.store.schema import TABLES, VERSION, VERSION_KEY, columns_of

_LONG = 64

JSON_LIMIT_BYTES = 16 << 20
"""No JSON file of a run is larger, padding included."""

RESTORE = "restore it from a copy or record again"

# What pyarrow raises on bytes that are not what they should be. ArrowInvalid is a ValueError.
_DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError)

_NO_MEMORY = "create failed"
"""What pyarrow says of a decoder for which there is none."""


@contextlib.contextmanager
def naming(path: Place, remedy: str = RESTORE) -> Iterator[None]:
    """Turn any failure to read `path` into a StoreError that names it, and the remedy if damaged.

    Raises:
        StoreError: the block failed.
    """
    try:
        yield
    except FpdiffError:
        raise
    except FileNotFoundError as error:
        raise StoreError(
            f"{path} is missing: copy the whole run folder, or try again if it is being recorded"
        ) from error
    except PermissionError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise too_large(path) from error
    except _DAMAGE as error:
        if _NO_MEMORY in str(error):
            raise too_large(path) from error
        raise damaged(path, _first_line(error), remedy) from error


def damaged(path: Place, reason: str, remedy: str = RESTORE) -> StoreError:
    """Return the error for a file whose content cannot be right."""
    return StoreError(f"{path} is damaged: {reason}; {remedy}")


def too_large(path: Place) -> StoreError:
    """Return the error for a file that takes more memory than there is: of damage it may ask so."""
    return StoreError(
        f"{path} takes more memory than there is: free some, or restore the file if that is no help"
    )


def read_json(path: Place, lists: "SharedLists | None" = None) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: of the file.
        lists: long lists of numbers are taken from here.

    Raises:
        StoreError: unreadable, too large, not JSON, or not an object.
    """
    with naming(path):
        is_large = size_of(path) > JSON_LIMIT_BYTES
        if not is_large:
            with open_file(local(path)) as file:
                content = file.read(JSON_LIMIT_BYTES + 1)
        if is_large or len(content) > JSON_LIMIT_BYTES:
            raise damaged(path, f"it is larger than {JSON_LIMIT_BYTES >> 20} MiB")
        try:
            found = json.loads(content, object_hook=lists.share if lists is not None else None)
        except RecursionError as error:
            raise damaged(path, "its JSON is nested too deeply") from error
        if not isinstance(found, dict):
            raise damaged(path, "it does not hold a JSON object")
        return found


def mapping(value: object) -> dict[str, Any]:
    """Return an object of JSON, an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def whole(value: object) -> int | None:
    """Return a whole number of JSON that a column can hold, None in the place of anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        return None
    return value


def text(value: object) -> str | None:
    """Return anything of JSON as text, None if there is nothing."""
    return None if value is None else str(value)


class SharedLists:
    """Keeps one of equal long lists of numbers: each of thousands of ranks names thousands."""

    def __init__(self) -> None:
        """Start empty."""
        self._lists: dict[bytes, list[Any]] = {}

    def share(self, found: dict[str, Any]) -> dict[str, Any]:
        """Put the list that is kept in the place of each equal one among an object's values."""
        for key, value in found.items():
            if isinstance(value, list) and len(value) > _LONG and set(map(type, value)) == {int}:
                with contextlib.suppress(OverflowError):  # Numbers of more than 64 bits.
                    found[key] = self._lists.setdefault(array("q", value).tobytes(), value)
        return found


def check_version(version: object, path: Place) -> None:
    """Refuse a file of a newer format.

    Raises:
        StoreError: the version is newer than ours, or no version.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(path, "it does not say which version of the format it has")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer fpdiff (format {version}; this one reads up to "
            f"{VERSION}): upgrade fpdiff"
        )


def check_schema(
    actual: pa.Schema,
    name: str,
    path: Place,
    columns: tuple[str, ...] | None = None,
    what: str | None = None,
) -> None:
    """Refuse a file that does not hold the columns of the table `name`, or these of them.

    Args:
        actual: of the file.
        name: of the table.
        path: of the file.
        columns: those that were read, all if None.
        what: what the file is called in the error, if not by the table's name.

    Raises:
        StoreError: a newer format or other columns.
    """
    version = (actual.metadata or {}).get(VERSION_KEY.encode())
    number = int(version) if version is not None and version.isdigit() else 0
    if version is not None:
        check_version(number, path)
    if version is None or not actual.equals(_schema_of(name, number, columns)):
        raise StoreError(f"{path} is not an fpdiff {what or name} file: its columns are others")


@functools.lru_cache(maxsize=256)
def _schema_of(name: str, version: int, columns: tuple[str, ...] | None) -> pa.Schema:
    names = [n for n in columns_of(name, version) if columns is None or n in columns]
    return pa.schema([TABLES[name].field(column) for column in names])


def check_nulls(table: pa.Table, path: Place) -> None:
    """Refuse nulls in columns that have none, which neither JSON nor Arrow would notice.

    Raises:
        StoreError: there is one.
    """
    for place, column in enumerate(table.itercolumns()):
        if column.null_count and not table.field(place).nullable:
            raise damaged(path, f"column {table.field(place).name} has an empty value")


def _first_line(error: BaseException) -> str:
    reason = str(error).strip() or type(error).__name__
    return reason.splitlines()[0].rstrip(".;")
