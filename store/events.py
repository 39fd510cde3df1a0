"""What must hold between the rows of a rank's tables."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fpdiff.store.checks import damaged


class EventChecker:
    """Checks the events of one rank, handed over in order and in parts."""

    def __init__(self, folder: Path, sites: pa.Table, steps: pa.Table) -> None:
        """Prepare for events that refer to `sites`; `folder` is named if some are missing."""
        self._folder = folder
        self._sites = sites["site"].to_numpy()
        counts = (steps[name].to_numpy().tolist() for name in ("step", "events"))
        self._expected: dict[int, int] = dict(zip(*counts, strict=True))
        self._last_seq = -1
        self._found: dict[int, int] = {}

    def check(self, events: pa.Table, path: Path) -> pa.Table:
        """Return `events`, read from `path`.

        Raises:
            StoreError: they cannot be what was recorded.
        """
        if not events.num_rows:
            return events
        seqs = events["seq"].to_numpy()
        if seqs[0] <= self._last_seq or (np.diff(seqs) <= 0).any():
            raise damaged(path, "its events are out of order")
        self._last_seq = int(seqs[-1])
        # Column by column: a reader may have left some out.
        if not np.isin(events["site"].to_numpy(), self._sites).all():
            raise damaged(path, "an event refers to a site that is not recorded")
        if "inputs" in events.column_names:
            offsets = pc.list_flatten(events["inputs"])
            if offsets.null_count or (len(offsets) and pc.min(offsets).as_py() < 1):
                raise damaged(path, "an event reads an event that is not before it")
        if "span" in events.column_names and pc.min(events["span"]).as_py() < 0:
            raise damaged(path, "an event has a negative span")
        self._count(events["step"].to_numpy())
        return events

    def check_complete(self, step: int) -> None:
        """Check that all events of a closed step have come by.

        Row groups are found by statistics that no checksum covers, so a flipped bit there would
        leave out events without a word.

        Raises:
            StoreError: some did not.
        """
        count = self._expected.get(step, 0)
        if self._found.get(step, 0) < count:
            raise damaged(self._folder, f"step {step} should have {count} events and has fewer")

    def _count(self, steps: npt.NDArray[np.int64]) -> None:
        first = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
        counts = np.diff(first, append=len(steps))
        for step, count in zip(steps[first].tolist(), counts.tolist(), strict=True):
            self._found[step] = self._found.get(step, 0) + count


def unique_sites(sites: pa.Table, folder: Path) -> pa.Table:
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
    # The first of each number from behind is the last of it.
    _, last = np.unique(numbers[::-1], return_index=True)
    if len(last) < len(numbers):
        steps = steps.take(pa.array(np.sort(len(numbers) - 1 - last)))
    if (np.diff(steps["first_seq"].to_numpy()) >= 0).all():
        return steps
    return steps.sort_by("first_seq")
