"""What must hold between the rows of a rank's tables."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fpdiff.store.checks import damaged
from fpdiff.store.places import Place


@dataclass(frozen=True)
class EventRows:
    """Rows of EVENTS in order.

    Attributes:
        table: the rows.
        steps: of each stretch of rows of one step; `first` is its first row.
    """

    table: pa.Table
    steps: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    @classmethod
    def of(cls, table: pa.Table) -> "EventRows":
        """Return rows that are at hand."""
        step = table["step"].to_numpy()
        begins = np.ones(len(step), bool)
        np.not_equal(step[1:], step[:-1], out=begins[1:])
        first = np.flatnonzero(begins)
        return cls(table, step[first], first)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.table.num_rows)

    def slice(self, first: int, end: int | None = None) -> "EventRows":
        """Return some of the rows; the same if they are all."""
        if not first and end in (None, len(self)):
            return self
        return EventRows.of(self.table.slice(first, None if end is None else end - first))

    def only(self, steps: npt.NDArray[np.int64]) -> "EventRows":
        """Return the rows of some steps; the same if they are all."""
        wanted = np.isin(self.steps, steps)
        if wanted.all():
            return self
        bounds = np.append(self.first, len(self))
        at = np.flatnonzero(wanted)
        if len(at) and len(at) == at[-1] - at[0] + 1:  # In one piece, which need not be copied.
            return self.slice(int(bounds[at[0]]), int(bounds[at[-1] + 1]))
        rows = np.repeat(wanted, np.diff(bounds))
        return EventRows.of(self.table.filter(pa.array(rows)))


class EventChecker:
    """Checks the events of one rank, handed over in order and in parts."""

    def __init__(self, folder: Place, sites: pa.Table, steps: pa.Table) -> None:
        """Prepare for events that refer to `sites`; `folder` is named if some are missing."""
        self._folder = folder
        self._sites = sites["site"].to_numpy()
        self._is_dense = bool((np.sort(self._sites) == np.arange(len(self._sites))).all())
        counts = (steps[name].to_numpy().tolist() for name in ("step", "events"))
        self._expected: dict[int, int] = dict(zip(*counts, strict=True))
        self._last_seq = -1
        self._found: dict[int, int] = {}

    def check(self, rows: EventRows, path: Place) -> EventRows:
        """Return `rows`, read from `path`.

        Raises:
            StoreError: they cannot be what was recorded.
        """
        if not len(rows):
            return rows
        events = rows.table
        seqs = events["seq"].to_numpy()
        if seqs[0] <= self._last_seq or (seqs[1:] <= seqs[:-1]).any():
            raise damaged(path, "its events are out of order")
        self._last_seq = int(seqs[-1])
        # Column by column: a reader may have left some out.
        if not self._are_known(events["site"].to_numpy()):
            raise damaged(path, "an event refers to a site that is not recorded")
        if "inputs" in events.column_names:
            offsets = pc.list_flatten(events["inputs"])
            if offsets.null_count or (len(offsets) and pc.min(offsets).as_py() < 1):
                raise damaged(path, "an event reads an event that is not before it")
        if "span" in events.column_names and pc.min(events["span"]).as_py() < 0:
            raise damaged(path, "an event has a negative span")
        counts = np.diff(rows.first, append=len(rows))
        for step, count in zip(rows.steps.tolist(), counts.tolist(), strict=True):
            self._found[step] = self._found.get(step, 0) + count
        return rows

    def _are_known(self, sites: npt.NDArray[np.int32]) -> bool:
        if self._is_dense:  # As recorders number them; much faster.
            return bool(sites.min() >= 0 and sites.max() < len(self._sites))
        return bool(np.isin(sites, self._sites).all())

    def check_complete(self, steps: Iterable[int]) -> None:
        """Check that all events of some closed steps have come by.

        Row groups are found by statistics that no checksum covers, so a flipped bit there would
        leave out events without a word.

        Raises:
            StoreError: some did not.
        """
        for step in steps:
            count = self._expected.get(step, 0)
            if self._found.get(step, 0) < count:
                raise damaged(self._folder, f"step {step} should have {count} events and has fewer")


def one_piece(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; it is copied only if it lies in several pieces."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def unique_sites(sites: pa.Table, folder: Place) -> pa.Table:
    """Return `sites` if their numbers are unique.

    Raises:
        StoreError: they are not.
    """
    if len(pc.unique(sites["site"])) != sites.num_rows:
        raise damaged(folder, "a site number appears twice")
    return sites


def unique_steps(steps: pa.Table) -> pa.Table:
    """Return the last row of each step, by first_seq: a step may be closed provisionally."""
    numbers = steps["step"].to_numpy()
    if not (np.diff(numbers) > 0).all():
        # The first of each number from behind is the last of it.
        _, last = np.unique(numbers[::-1], return_index=True)
        if len(last) < len(numbers):
            steps = steps.take(pa.array(np.sort(len(numbers) - 1 - last)))
    if (np.diff(steps["first_seq"].to_numpy()) >= 0).all():
        return steps
    return steps.sort_by("first_seq")
