"""The small tables of all ranks in one file each, for runs of very many ranks.

`RUN/compact/` holds `steps.parquet` and `sites.parquet`, the rows of all ranks with their rank and
segment in front, and `index.json`, which is written last and says what they were made of. They
are a copy: a rank whose own files are others by now is read from those.
"""

import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fpdiff.store.checks import check_nulls, check_version, damaged, naming, read_json
from fpdiff.store.errors import StoreError
from fpdiff.store.places import Place, local, sizes_in
from fpdiff.store.schema import TABLES, VERSION_KEY, rank_name

FOLDER: Final = "compact"
COMPACTED: Final = ("steps", "sites")
"""The tables that are consolidated: those of which each file is small."""

OWN: Final = (
    pa.field("rank", pa.int32(), nullable=False),
    pa.field("segment", pa.int32(), nullable=False),
)
"""Columns that stand before those of the table."""

_AGAIN = "run `fpdiff compact` again"


@dataclass(frozen=True)
class Part:
    """A rank's share of a consolidated table.

    Attributes:
        group: number of the row group that holds its rows.
        rows: how many.
        segments: how many files they came from; size_bytes is the size of these together.
    """

    group: int
    rows: int
    segments: int
    size_bytes: int


class Compact:
    """Reads the consolidated tables of a run."""

    def __init__(self, root: Place, parts: dict[str, dict[int, Part]]) -> None:
        """Hold what the index says; use `open`."""
        self._root = root
        self._parts = parts
        self._files = {name: _Table(root / FOLDER / table_file(name), name) for name in COMPACTED}

    @classmethod
    def open(cls, root: Place) -> "Compact | None":
        """Return the consolidated tables of a run, None if it has none.

        Raises:
            StoreError: their index is damaged or of a newer format.
        """
        path = root / FOLDER / "index.json"
        if not path.exists():
            return None
        content = read_json(path)
        check_version(content.get("schema"), path)
        try:
            parts = {
                name: {int(rank): Part(*map(int, row)) for rank, row in content[name].items()}
                for name in COMPACTED
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, "it does not list the ranks") from error
        return cls(root, parts)

    def is_current(self, rank: int) -> bool:
        """Return whether a rank's own files are still those that the tables were made of."""
        return all(
            rank in self._parts[name]
            and own_files(self._root, name, rank)
            == (self._parts[name][rank].segments, self._parts[name][rank].size_bytes)
            for name in COMPACTED
        )

    def read(self, rank: int, name: str, columns: tuple[str, ...] | None = None) -> list[pa.Table]:
        """Return a rank's rows of a table, segment by segment.

        Raises:
            StoreError: the file is damaged or foreign.
        """
        return self._files[name].read(rank, self._parts[name][rank], columns)


class _Table:
    """One consolidated table; remembers the row groups that it read last, of neighbouring ranks."""

    def __init__(self, path: Place, name: str) -> None:
        self._path = path
        self._schema = compact_schema(name)
        self._latest: dict[tuple[str, ...], dict[int, pa.Table]] = {}
        self._lock = threading.Lock()

    def read(self, rank: int, part: Part, columns: tuple[str, ...] | None) -> list[pa.Table]:
        with naming(self._path, _AGAIN):
            names = [n for n in self._schema.names if columns is None or n in columns]
            table, ranks = self._group(part.group, names)
            first, end = np.searchsorted(ranks, [rank, rank + 1]).tolist()
            if end - first != part.rows:
                raise _damaged(self._path, f"rank {rank} has not the rows that it should have")
            own = table.slice(first, part.rows)
            segment = own["segment"].to_numpy()
            inside = (segment >= 0) & (segment < part.segments)
            if not inside.all() or (np.diff(segment) < 0).any():
                raise _damaged(self._path, f"the rows of rank {rank} are out of order")
            rows = own.select([name for name in names if name not in ("rank", "segment")])
            rows = rows.replace_schema_metadata(self._schema.metadata)
            bounds = np.searchsorted(segment, np.arange(part.segments + 1)).tolist()
            return [rows.slice(a, b - a) for a, b in pairwise(bounds)]

    def _group(self, group: int, names: list[str]) -> tuple[pa.Table, npt.NDArray[np.int32]]:
        with self._lock:
            latest = self._latest.setdefault(tuple(names), {})
            if group not in latest:
                latest[group] = self._read_group(group, names)
                # Threads that go through the ranks side by side may be in two row groups.
                for old in list(latest)[:-2]:
                    del latest[old]
            table = latest[group]
        ranks: npt.NDArray[np.int32] = table["rank"].to_numpy()
        return table, ranks

    def _read_group(self, group: int, names: list[str]) -> pa.Table:
        file = self._file
        if not 0 <= group < file.num_row_groups:
            raise _damaged(self._path, "it has not the row groups that it should have")
        wanted = [field.name for field in OWN]
        table = file.read_row_group(
            group, columns=[*wanted, *(n for n in names if n not in wanted)]
        )
        table.validate(full=True)
        check_nulls(table, self._path)
        if (np.diff(table["rank"].to_numpy()) < 0).any():
            raise _damaged(self._path, "its ranks are out of order")
        return table

    @cached_property
    def _file(self) -> pq.ParquetFile:
        file = pq.ParquetFile(local(self._path), page_checksum_verification=True)
        actual = file.schema_arrow
        version = (actual.metadata or {}).get(VERSION_KEY.encode(), b"")
        check_version(int(version) if version.isdigit() else 0, self._path)
        if not actual.equals(self._schema):
            raise _damaged(self._path, "its columns are others")
        return file


def compact_schema(name: str) -> pa.Schema:
    """Return the schema of a consolidated table."""
    return pa.schema([*OWN, *TABLES[name]], metadata=TABLES[name].metadata)


def table_file(name: str) -> str:
    """Return the name of a consolidated table's file in FOLDER."""
    return f"{name}.parquet"


def own_files(root: Place, name: str, rank: int) -> tuple[int, int]:
    """Return how many files of a table a rank has, and their size together."""
    path = root / name / rank_name(rank)
    with naming(path):
        sizes = [size for name, size in sizes_in(path).items() if name.endswith(".parquet")]
    return len(sizes), sum(sizes)


def _damaged(path: Place, reason: str) -> StoreError:
    return damaged(path, reason, _AGAIN)
