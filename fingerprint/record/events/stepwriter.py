"""Puts the events of steps on disk, in order, each batch once its digests have arrived.

What the host digests is there at once, and is written at once. What a device digests comes later
(`digest.staging`); then the batch is held, and so is everything behind it, since a step's row is a
digest over its events in order and is chained to the row before.
"""

from collections import deque
from collections.abc import Callable

from fpdiff.fingerprint.digest.staging import Staging
from fpdiff.fingerprint.record.events.sitetable import SiteTable
from fpdiff.fingerprint.record.events.steprow import StepRow
from fpdiff.store.columns import EventColumns
from fpdiff.store.writer import RankWriter

MAX_HELD = 4
"""So many batches may be held; for the first of them is waited then."""


class StepWriter:
    """Writes one rank's steps.

    Raises (every method):
        OSError: see `RankWriter`.
    """

    def __init__(self, writer: RankWriter, sites: SiteTable, staging: Staging | None) -> None:
        """Begin with the first step.

        Args:
            writer: where to write.
            sites: of the events.
            staging: where digests come from that are not there yet; None if all are.
        """
        self._writer = writer
        self._sites = sites
        self._staging = staging
        self._held: deque[tuple[int, Callable[[], None]]] = deque()
        self._row: StepRow
        self._chain = bytes(16)

    def open_step(self, number: int, first_seq: int) -> None:
        """Begin a step; what comes next belongs to it."""

        def begin() -> None:
            self._writer.end_segment_if_full()
            self._row = StepRow(number, first_seq, self._chain)

        self._do(begin)

    def write(self, columns: EventColumns, *, close: bool, ended: bool) -> None:
        """Write events of the open step.

        Args:
            columns: the events; the caller adds none any more.
            close: write the step's row too, which may be written again.
            ended: see `StepRow.row`.
        """
        until = 0 if self._staging is None else self._staging.begin_copies()

        def add() -> None:
            if self._staging is not None:
                self._staging.fill(columns.digests, until)
                columns.values |= self._staging.values(columns.late_values, until)
            self._row.add(columns, self._sites)
            self._writer.flush(columns, self._row.row(ended=ended) if close else None)

        self._do(add, until)

    def end_step(self, *, ended: bool) -> None:
        """End the open step: its row is final."""

        def end() -> None:
            self._chain = self._row.row(ended=ended)["chain"]
            if self._staging is not None:
                self._staging.end_step()

        self._do(end)

    def close(self) -> None:
        """Write what is held, waiting for it, and end the files."""
        self._drain(0)
        self._writer.close()

    def _do(self, action: Callable[[], None], until: int = 0) -> None:
        """Do something after all that is held, and once digests have arrived."""
        self._held.append((until, action))
        self._drain(MAX_HELD)

    def _drain(self, may_hold: int) -> None:
        while self._held:
            until, action = self._held[0]
            is_there = self._staging is None or self._staging.has_arrived(until)
            if not is_there and len(self._held) <= may_hold:
                return
            self._held.popleft()
            action()
