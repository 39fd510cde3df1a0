"""The reading side: `Run.open` and the records of its ranks.

Opening lists folders and reads run.json; everything else is read when it is asked for, so a run
of thousands of ranks opens at once.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fpdiff.store.checks import check_version, damaged, naming, read_json
from fpdiff.store.errors import StoreError
from fpdiff.store.events import EventChecker, unique_sites, unique_steps
from fpdiff.store.journal import Journal, read_journal
from fpdiff.store.parquet import TableFile
from fpdiff.store.schema import EVENTS, TABLES, rank_name, segment_name

_RANK = re.compile(r"rank=(\d{5,9})(?:\.json)?", re.ASCII)
_SEGMENT = re.compile(r"seg-(\d{5,9})\.(?:parquet|arrows)", re.ASCII)


@dataclass(frozen=True)
class Segment:
    """A numbered part of a rank's record: three Parquet files, or a journal."""

    files: dict[str, TableFile]  # by table; empty while the segment is a journal
    journal: Path | None


class RankRecord:
    """What one rank of a run recorded. Reads lazily and remembers what it has read."""

    def __init__(self, root: Path, rank: int, shift: int = 0) -> None:
        """Remember where the rank's files are.

        Args:
            root: folder of the run.
            rank: the rank.
            shift: added to the steps' numbers, for a run that continues another.
        """
        self.root = root
        self.rank = rank
        self.shift = shift
        self._folder = rank_name(rank)

    @cached_property
    def info(self) -> dict[str, Any]:
        """The rank's own description; empty if the rank died before it wrote one.

        Raises:
            StoreError: the file is damaged.
        """
        path = self.root / "ranks" / f"{self._folder}.json"
        return read_json(path) if path.exists() else {}

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments in order.

        Raises:
            StoreError: a file is missing between others.
        """
        # Journals first: one that becomes Parquet meanwhile is then seen twice, not never.
        journals = self._numbers("journal")
        tables = {name: self._numbers(name) for name in TABLES}
        count = 1 + max([-1, *journals, *(number for t in tables.values() for number in t)])
        return [self._segment(number, journals, tables) for number in range(count)]

    @property
    def open_journal(self) -> bool:
        """Whether a segment is still a journal: the rank is recording, or was killed."""
        return any(segment.journal for segment in self.segments)

    @property
    def num_events(self) -> int:
        """Number of events, from footers and journals."""
        committed = sum(s.files["events"].num_rows for s in self.segments if s.files)
        return committed + sum(len(b) for journal in self.journals for b in journal.batches)

    @property
    def size_bytes(self) -> int:
        """Size on disk of the files that count."""
        paths = [file.path for segment in self.segments for file in segment.files.values()]
        paths += [segment.journal for segment in self.segments if segment.journal]
        total = 0
        for path in paths:
            with naming(path):
                total += path.stat().st_size
        return total

    @cached_property
    def journals(self) -> list[Journal]:
        """The segments that are journals, read.

        Raises:
            StoreError: a journal is damaged.
        """
        paths = [segment.journal for segment in self.segments if segment.journal]
        journals = [read_journal(path) for path in paths]
        for journal, segment in zip(journals, [s for s in self.segments if s.journal], strict=True):
            if not journal.whole and segment is not self.segments[-1]:
                raise damaged(journal.path, "it is cut off, yet later segments exist")
        return journals

    def anew(self, *, shift: int | None = None) -> "RankRecord":
        """Return the same record with nothing read yet, its steps' numbers shifted if asked to."""
        return RankRecord(self.root, self.rank, self.shift if shift is None else shift)

    def sites(self) -> pa.Table:
        """Return the rows of SITES.

        Raises:
            StoreError: a file is damaged or foreign, or a site number appears twice.
        """
        return self._sites

    def steps(self) -> pa.Table:
        """Return the rows of STEPS, one per closed step, by first_seq.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        return self._shifted(self._steps)

    def events(self, step: int) -> pa.Table:
        """Return the rows of EVENTS of one step, by seq; none if there is no such step.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        checker = EventChecker(self.root / "events" / self._folder, self._sites, self._steps)
        step -= self.shift
        tables = [EVENTS.empty_table()]
        for path, table in self._event_tables(step):
            found = table.filter(pc.equal(table["step"], step))
            tables.append(checker.check(found, path))
        checker.check_complete(step)
        return self._shifted(pa.concat_tables(tables))

    def event_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all events in order.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        checker = EventChecker(self.root / "events" / self._folder, self._sites, self._steps)
        for path, table in self._event_tables():
            yield from self._shifted(checker.check(table, path)).to_batches()
        for step in self._steps["step"].to_pylist():
            checker.check_complete(step)

    def _shifted(self, table: pa.Table) -> pa.Table:
        if not self.shift:
            return table
        place = table.column_names.index("step")
        return table.set_column(place, table.schema.field(place), pc.add(table["step"], self.shift))

    def _event_tables(self, step: int | None = None) -> Iterator[tuple[Path, pa.Table]]:
        journals = iter(self.journals)
        for segment in self.segments:
            if segment.journal:
                journal = next(journals)
                yield segment.journal, journal.table("events")
            else:
                file = segment.files["events"]
                for group in file.groups(step):
                    yield file.path, group

    @cached_property
    def _sites(self) -> pa.Table:
        return unique_sites(self._tables("sites"), self.root / "sites" / self._folder)

    @cached_property
    def _steps(self) -> pa.Table:
        return unique_steps(self._tables("steps"))

    def _tables(self, name: str) -> pa.Table:
        journals = iter(self.journals)
        tables = [
            segment.files[name].read() if segment.files else next(journals).table(name)
            for segment in self.segments
        ]
        return pa.concat_tables([TABLES[name].empty_table(), *tables])

    def _numbers(self, folder: str) -> set[int]:
        path = self.root / folder / self._folder
        with naming(path):
            names = os.listdir(path) if path.is_dir() else []
        return {int(match[1]) for match in map(_SEGMENT.fullmatch, names) if match}

    def _segment(self, number: int, journals: set[int], tables: dict[str, set[int]]) -> Segment:
        paths = {
            name: self.root / name / self._folder / f"{segment_name(number)}.parquet"
            for name in TABLES
        }
        # The events file is written last: it commits the segment.
        if number not in tables["events"] and number in journals:
            journal = self.root / "journal" / self._folder / f"{segment_name(number)}.arrows"
            return Segment({}, journal)
        for name, path in paths.items():
            if number not in tables[name]:
                raise StoreError(f"{path} is missing: copy the whole run folder again")
        return Segment({name: TableFile(path, name) for name, path in paths.items()}, None)


class Run:
    """Everything recorded from one launch."""

    def __init__(self, path: Path, info: dict[str, Any], ranks: dict[int, RankRecord]) -> None:
        """Hold what `open` found; use `open`."""
        self.path = path
        self.info = info
        self.ranks = ranks

    def shifted(self, shift: int) -> "Run":
        """Return the run with `shift` added to its steps' numbers."""
        ranks = {rank: record.anew(shift=shift) for rank, record in self.ranks.items()}
        return Run(self.path, self.info, ranks)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Open the run in the folder `path` without reading its events.

        Raises:
            StoreError: there is no run, it is damaged, or its format is newer.
        """
        root = Path(path)
        if not root.exists():
            raise StoreError(f"no run at {root}")
        if not (root / "run.json").is_file():
            raise StoreError(
                f"{root} is not a run: it has no run.json; give the folder that "
                "`fpdiff record --out` wrote"
            )
        info = read_json(root / "run.json")
        check_version(info.get("schema"), root / "run.json")
        return cls(root, info, {rank: RankRecord(root, rank) for rank in _ranks(root)})


def _ranks(root: Path) -> list[int]:
    found: set[int] = set()
    for folder in ("ranks", "journal", *TABLES):
        path = root / folder
        with naming(path):
            names = os.listdir(path) if path.is_dir() else []
        found.update(int(match[1]) for match in map(_RANK.fullmatch, names) if match)
    return sorted(found)
