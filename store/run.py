"""The reading side: `Run.open` and the records of its ranks.

Opening lists folders and reads run.json; everything else is read when it is asked for, so a run
of thousands of ranks opens at once.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fpdiff.store.bucket import refuse_other_scheme
from fpdiff.store.checks import (
    SharedLists,
    check_version,
    damaged,
    mapping,
    naming,
    read_json,
    whole,
)
from fpdiff.store.compact import Compact
from fpdiff.store.errors import StoreError
from fpdiff.store.events import EventChecker, EventRows, unique_sites, unique_steps
from fpdiff.store.journal import Journal, read_journal
from fpdiff.store.parquet import Known, TableFile, no_rows
from fpdiff.store.places import Place, names_in, place, size_of
from fpdiff.store.schema import EVENTS, STEPS, TABLES, rank_name, segment_name

_RANK = re.compile(r"rank=(\d{5,9})(?:\.json)?", re.ASCII)
_SEGMENT = re.compile(r"seg-(\d{5,9})\.(?:parquet|arrows)", re.ASCII)

STEP_NUMBERS = ("step", "first_seq", "events")
"""Columns of STEPS that are read whenever any are: which events a step has."""


@dataclass(frozen=True)
class Segment:
    """A numbered part of a rank's record: three Parquet files, or a journal."""

    files: dict[str, TableFile]  # by table; empty while the segment is a journal
    journal: Place | None


class RankRecord:
    """What one rank of a run recorded. Reads lazily and remembers what it has read."""

    def __init__(
        self,
        root: Place,
        rank: int,
        shift: int = 0,
        compact: Compact | None = None,
        lists: SharedLists | None = None,
        known: Known | None = None,
    ) -> None:
        """Remember where the rank's files are.

        Args:
            root: folder of the run.
            rank: the rank.
            shift: added to the steps' numbers, for a run that continues another.
            compact: the run's consolidated tables, which are preferred where they are current.
            lists: what the descriptions of the run's ranks have in common.
            known: what was read of small files, shared with records that have some of the same.
        """
        self.root = root
        self.rank = rank
        self.shift = shift
        self._compact = compact
        self._lists = lists
        self._known = known

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process read it anew."""
        return RankRecord, (self.root, self.rank, self.shift)

    @cached_property
    def info(self) -> dict[str, Any]:
        """The rank's own description; empty if the rank died before it wrote one.

        Raises:
            StoreError: the file is damaged.
        """
        path = self.root / "ranks" / f"{rank_name(self.rank)}.json"
        return read_json(path, self._lists) if path.exists() else {}

    @property
    def environment(self) -> dict[str, Any]:
        """What the rank ran in, see `info`."""
        return mapping(self.info.get("environment"))

    @property
    def switched(self) -> list[dict[str, Any]]:
        """Entries of the environment that the program switched: step, phase, root, key, value."""
        found = self.info.get("switched")
        return [
            {**note, "step": note["step"] + self.shift}
            for note in (map(mapping, found) if isinstance(found, list) else ())
            if whole(note.get("step")) is not None
            and all(isinstance(note.get(name), str) for name in ("phase", "root", "key"))
            and "value" in note
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """The options that the rank was recorded with, see `info`."""
        return mapping(self.info.get("settings"))

    @property
    def blind_spots(self) -> dict[str, int]:
        """What was executed but not fingerprinted: reason to count, see `info`."""
        found = mapping(self.info.get("blind_spots")).items()
        return {reason: number for reason, count in found if (number := whole(count)) is not None}

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments in order.

        Raises:
            StoreError: a file is missing between others.
        """
        # Journals first: one that becomes Parquet meanwhile is then seen twice, not never.
        journals = self._segment_numbers("journal")
        tables = {name: self._segment_numbers(name) for name in TABLES}
        committed = journals | tables["events"]
        count = 1 + max(committed | tables["sites"] | tables["steps"], default=-1)
        if count > 1 + max(committed, default=-1) and self.info.get("finished") is not True:
            # A copy was interrupted, or made while the rank recorded; its journals are elsewhere.
            count = 1 + max(committed, default=-1)
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
                total += size_of(path)
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

    @cached_property
    def is_compact(self) -> bool:
        """Whether the rank's small tables are read from the run's consolidated ones."""
        return self._compact is not None and self._compact.is_current(self.rank)

    def anew(self, *, shift: int | None = None, known: Known | None = None) -> "RankRecord":
        """Return the same record with no table read yet.

        Args:
            shift: added to the steps' numbers; the record's own if None.
            known: what was read of small files, shared with records that have some of the same.
        """
        shift = self.shift if shift is None else shift
        record = RankRecord(self.root, self.rank, shift, self._compact, self._lists, known)
        if "info" in self.__dict__:
            record.__dict__["info"] = self.info
        return record

    def announce_steps(self) -> None:
        """Have the files of step rows fetched all at once, before they are read one by one.

        Raises:
            StoreError: a file is missing.
        """
        for segment in () if self.is_compact else self.segments:
            if segment.files:
                segment.files["steps"].announce()

    def sites(self) -> pa.Table:
        """Return the rows of SITES.

        Raises:
            StoreError: a file is damaged or foreign, or a site number appears twice.
        """
        return self._sites

    def steps(
        self, columns: Collection[str] | None = None, of: npt.NDArray[np.int64] | None = None
    ) -> pa.Table:
        """Return the rows of STEPS, one per closed step, by first_seq.

        Args:
            columns: read only these, and STEP_NUMBERS; all if None.
            of: rows of these steps are wanted; those of segments without any may be left out.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        wanted = None
        if columns is not None:
            wanted = tuple(n for n in STEPS.names if n in STEP_NUMBERS or n in columns)
        if of is not None:
            of = of - self.shift
        rows = unique_steps(self._tables("steps", wanted, of))
        if of is None:
            self.__dict__.setdefault("_numbers", rows.select(STEP_NUMBERS))
        return self._shifted(rows)

    def events(self, step: int) -> pa.Table:
        """Return the rows of EVENTS of one step, by seq; none if there is no such step.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        checker = EventChecker(self._folders["events"], self._sites, self._numbers)
        step -= self.shift
        tables = [EVENTS.empty_table()]
        for path, table in self._event_tables(np.array([step])):
            found = EventRows.of(table.filter(pc.equal(table["step"], step)))
            tables.append(checker.check(found, path).table)
        checker.check_complete([step])
        return self._shifted(pa.concat_tables(tables))

    def events_of(
        self, steps: npt.NDArray[np.int64], columns: Collection[str]
    ) -> Iterator[EventRows]:
        """Yield the rows of EVENTS of some steps, in order, in parts as they lie on disk.

        Args:
            steps: their numbers.
            columns: read only these, and `step`, `seq` and `site`.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        checker = EventChecker(self._folders["events"], self._sites, self._numbers)
        wanted = tuple(n for n in EVENTS.names if n in ("step", "seq", "site") or n in columns)
        own = steps - self.shift
        for path, table in self._event_tables(own, wanted):
            rows = checker.check(EventRows.of(table).only(own), path)
            yield EventRows.of(self._shifted(rows.table)) if self.shift else rows
        checker.check_complete(own.tolist())

    def event_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all events in order.

        Raises:
            StoreError: a file is damaged or foreign.
        """
        checker = EventChecker(self._folders["events"], self._sites, self._numbers)
        for path, table in self._event_tables():
            rows = checker.check(EventRows.of(table), path)
            yield from self._shifted(rows.table).to_batches()
        checker.check_complete(self._numbers["step"].to_pylist())

    def _shifted(self, table: pa.Table) -> pa.Table:
        if not self.shift:
            return table
        place = table.column_names.index("step")
        return table.set_column(place, table.schema.field(place), pc.add(table["step"], self.shift))

    def _event_tables(
        self,
        steps: npt.NDArray[np.int64] | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> Iterator[tuple[Place, pa.Table]]:
        journals = iter(self.journals)
        holding = range(len(self.segments)) if steps is None else self._may_hold(steps)
        whole = [i for i in holding if steps is None or np.isin(self._closed[i], steps).all()]
        for index, segment in enumerate(self.segments):
            if segment.journal:
                journal = next(journals)
                yield segment.journal, _select(journal.table("events"), columns)
            elif index in holding:
                following = next((self.segments[i] for i in whole if i > index), None)
                if following is not None and following.files:
                    following.files["events"].announce()
                file = segment.files["events"]
                for group in file.groups(None if index in whole else steps, columns):
                    yield file.path, group

    def _may_hold(self, steps: npt.NDArray[np.int64]) -> Sequence[int]:
        """Return the segments that may hold events of some steps.

        Segments end between steps, so a step is closed where its events are; those of a step that
        was never closed may be anywhere.
        """
        if not len(self._closed) or not np.isin(steps, np.concatenate(self._closed)).all():
            return range(len(self.segments))
        return sorted({*self._closing(steps), len(self.segments) - 1})

    def _closing(self, steps: npt.NDArray[np.int64]) -> set[int]:
        """Return the segments that close any of some steps."""
        if not self._closed:
            return set()
        segment = np.repeat(np.arange(len(self._closed)), [len(own) for own in self._closed])
        return set(segment[np.isin(np.concatenate(self._closed), steps)].tolist())

    @cached_property
    def _folders(self) -> dict[str, Place]:
        folder = rank_name(self.rank)
        return {name: self.root / f"{name}/{folder}" for name in ("journal", *TABLES)}

    @cached_property
    def _sites(self) -> pa.Table:
        return unique_sites(self._tables("sites"), self._folders["sites"])

    @cached_property
    def _numbers(self) -> pa.Table:
        return unique_steps(self._tables("steps", STEP_NUMBERS))

    @cached_property
    def _closed(self) -> list[npt.NDArray[np.int64]]:
        """The steps that each segment closes."""
        return [table["step"].to_numpy() for table in self._parts("steps", ("step",))]

    def _tables(
        self,
        name: str,
        columns: tuple[str, ...] | None = None,
        of: npt.NDArray[np.int64] | None = None,
    ) -> pa.Table:
        parts = self._parts(name, columns, of)
        if name == "steps" and of is None:
            self.__dict__["_closed"] = [table["step"].to_numpy() for table in parts]
        return pa.concat_tables([no_rows(name, columns), *parts])

    def _parts(
        self,
        name: str,
        columns: tuple[str, ...] | None = None,
        of: npt.NDArray[np.int64] | None = None,
    ) -> list[pa.Table]:
        """Return a table's rows by segment; those without any of the steps `of` may be left out."""
        if self._compact is not None and self.is_compact:
            return self._compact.read(self.rank, name, columns)
        journals = iter(self.journals)
        closing = None if of is None else self._closing(of)
        return [
            segment.files[name].read(columns)
            if segment.files
            else _select(next(journals).table(name), columns)
            for index, segment in enumerate(self.segments)
            if closing is None or not segment.files or index in closing
        ]

    def _segment_numbers(self, folder: str) -> set[int]:
        path = self._folders[folder]
        with naming(path):
            names = names_in(path)
        return {int(match[1]) for match in map(_SEGMENT.fullmatch, names) if match}

    def _segment(self, number: int, journals: set[int], tables: dict[str, set[int]]) -> Segment:
        # The events file is written last: it commits the segment.
        if number not in tables["events"] and number in journals:
            return Segment({}, self._folders["journal"] / f"{segment_name(number)}.arrows")
        text = f"{segment_name(number)}.parquet"
        files = {name: TableFile(self._folders[name], text, name, self._known) for name in TABLES}
        for name, file in files.items():
            if number not in tables[name]:
                raise StoreError(f"{file.path} is missing: copy the whole run folder again")
        return Segment(files, None)


class Run:
    """Everything recorded from one launch."""

    def __init__(
        self, path: Place, info: dict[str, Any], ranks: dict[int, RankRecord], shift: int = 0
    ) -> None:
        """Hold what `open` found; use `open`."""
        self.path = path
        self.info = info
        self.ranks = ranks
        self._shift = shift

    @property
    def settings(self) -> dict[str, Any]:
        """The options that the run was recorded with, as run.json has them."""
        return mapping(self.info.get("settings"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open it anew."""
        return _reopened, (self.path, self._shift)

    def shifted(self, shift: int) -> "Run":
        """Return the run with `shift` added to its steps' numbers."""
        ranks = {rank: record.anew(shift=shift) for rank, record in self.ranks.items()}
        return Run(self.path, self.info, ranks, shift)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | Place, *, compact: bool = True) -> "Run":
        """Open the run at `path` without reading its events.

        Args:
            path: a folder, or `s3://BUCKET/FOLDER`, whose files are fetched when they are read.
            compact: read from the consolidated tables of `fpdiff compact` where they are current.

        Raises:
            StoreError: there is no run, it is damaged, or its format is newer.
            BucketError: object storage refuses or cannot be reached.
        """
        root = _place_of_run(path)
        info = read_json(root / "run.json")
        check_version(info.get("schema"), root / "run.json")
        found = Compact.open(root) if compact else None
        lists = SharedLists()
        ranks = {rank: RankRecord(root, rank, 0, found, lists) for rank in _ranks(root)}
        return cls(root, info, ranks)


def _reopened(path: Place, shift: int) -> Run:
    run = Run.open(path)
    return run.shifted(shift) if shift else run


def _select(table: pa.Table, columns: tuple[str, ...] | None) -> pa.Table:
    return table if columns is None else table.select(list(columns))


def _place_of_run(path: str | os.PathLike[str] | Place) -> Place:
    root = place(path)
    # A Path would show neither an empty name nor both slashes of an address.
    name = (str(path) if isinstance(root, Path) else str(root)) or "''"
    try:
        is_there = name != "''" and root.exists()
        is_run = is_there and (root / "run.json").is_file()
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {error.strerror or error}") from error
    if not is_there:
        refuse_other_scheme(name)
        raise StoreError(f"no run at {name}: give what `fpdiff record --out` was given")
    if not is_run:
        raise StoreError(
            f"{root} is not a run: it has no run.json; give the folder that "
            "`fpdiff record --out` wrote"
        )
    return root


def _ranks(root: Place) -> list[int]:
    found: set[int] = set()
    for folder in ("ranks", "journal", *TABLES):
        path = root / folder
        with naming(path):
            names = names_in(path)
        found.update(int(match[1]) for match in map(_RANK.fullmatch, names) if match)
    return sorted(found)
