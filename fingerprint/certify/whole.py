"""Files, step rows and events agree with one another: nothing was lost or altered since."""

from array import array
from typing import Any

from fpdiff.fingerprint.bisect.arm import Ints
from fpdiff.fingerprint.bisect.wording import numbers_text
from fpdiff.fingerprint.certify.ledger import Ledger
from fpdiff.fingerprint.certify.rank import Rank
from fpdiff.fingerprint.certify.sites import Sites
from fpdiff.fingerprint.certify.stream import StepEvents
from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.fingerprint.record.events.steprow import StepRow
from fpdiff.store.columns import EventColumns
from fpdiff.store.errors import StoreError
from fpdiff.store.run import RankRecord
from fpdiff.store.schema import DIGEST_BYTES, STEPS
from fpdiff.store.verify import Verifier

STRUCTURE_SINCE = 2
"""Version of the format since which a site's description is made of the same columns."""

_START = bytes(DIGEST_BYTES)
"""The chain before the first step."""

Row = dict[str, Any]


def check_files(rank: Rank, record: RankRecord, verifier: Verifier, ledger: Ledger) -> int:
    """Read every file of a rank, name each that is damaged, and return how many there are."""
    try:
        segments = record.segments
        journals = record.journals
    except StoreError as error:
        ledger.add("files", str(error), rank=record.rank)
        return 0
    files = [file for segment in segments for file in segment.files.values()]
    for damage in verifier.damages(files):
        ledger.add("files", str(damage), rank=record.rank)
    if journals and rank.state == "finished":
        summary = "it has finished, yet a segment of it is still a journal"
        ledger.add("ending", summary, rank=rank.rank)
    return len(files) + len(journals)


def check_rows(rank: Rank, rows: list[Row], ledger: Ledger) -> None:
    """Check a rank's step rows against one another."""
    chain, seq = _START, 0
    for row in rows:
        step = row["step"]
        if row["first_seq"] != seq:
            summary = f"its events begin at seq {row['first_seq']:,}, not at {seq:,}"
            ledger.add("events", f"{summary}: a step before it is gone", rank=rank.rank, step=step)
        if row["chain"].bytes != digest_bytes(
            chain + row["content"].bytes + row["structure"].bytes
        ):
            summary = "its chain does not follow from the step before it and its own digests"
            ledger.add("events", summary, rank=rank.rank, step=step)
        if not row["ended"] and row is not rows[-1]:
            summary = "the step was never ended, yet others come after it"
            ledger.add("events", summary, rank=rank.rank, step=step)
        chain, seq = row["chain"].bytes, row["first_seq"] + row["events"]


class EventCheck:
    """Checks a rank's events against its step rows, handed over in order."""

    def __init__(
        self, rank: Rank, rows: list[Row], sites: Sites, ledger: Ledger, *, version: int
    ) -> None:
        """Prepare for the events of a rank; `version` is that of the run's format."""
        self._rank = rank
        self._rows = {row["step"]: row for row in rows}
        self._last_step = rows[-1]["step"] if rows else None
        self._sites = sites
        self._ledger = ledger
        # The chain is checked row by row.
        self._hidden = ("chain",) if version >= STRUCTURE_SINCE else ("chain", "structure")
        self._next_seq = 0

    def check(self, events: StepEvents) -> StepEvents:
        """Check the events of a step; return those that are closed."""
        step, rank = events.step, self._rank.rank
        gap = int(events.seq[0]) != self._next_seq or events.seq[-1] - events.seq[0] >= len(events)
        if gap:
            summary = f"its events' numbers have gaps: they should go on from {self._next_seq:,}"
            self._ledger.add("events", summary, rank=rank, step=step)
        self._next_seq = int(events.seq[-1]) + 1
        row = self._rows.get(step)
        if row is None:
            if self._rank.state == "finished" or any(later > step for later in self._rows):
                summary = "it has events and no row that closes it"
                self._ledger.add("events", summary, rank=rank, step=step)
            return events.head(0)
        if self._rank.state != "finished" and step == self._last_step:
            # A step is closed provisionally when an optimizer has stepped, and may have gone on.
            events = events.head(row["events"])
        made = self._made_of(events, row)
        other = [name for name in STEPS.names if name not in made and row[name] is not None]
        other += [name for name, value in made.items() if _plain(row[name]) != value]
        if other := [name for name in other if not name.startswith(self._hidden)]:
            summary = "its events are not those that its row was made of: the row has another"
            self._ledger.add("events", f"{summary} {_shown(other)}", rank=rank, step=step)
        return events

    def _made_of(self, events: StepEvents, row: Row) -> Row:
        """Return the row that the recorder would have made of the events."""
        columns = EventColumns(events.step, int(events.seq[0]))
        columns.sites = _array(events.site)
        columns.microbatches = _array(events.microbatch)
        columns.digests = bytearray(events.digest.tobytes())
        made = StepRow(events.step, columns.first_seq, _START)
        made.add(columns, self._sites.table)
        return made.row(ended=row["ended"])


def check_ending(rank: Rank, record: RankRecord, exit_code: object, ledger: Ledger) -> None:
    """Check that a rank's recording went on to its orderly end."""
    if rank.state == "stopped":
        ledger.add("ending", str(record.info.get("stopped")), rank=rank.rank)
    elif rank.state == "open":
        summary = "its record has no end: it is still being recorded, or was killed"
        if rank.has_rows:
            summary += f"; closed are {_steps(rank.steps)}"
        ledger.add("ending", summary, rank=rank.rank)
    elif rank.state == "finished" and rank.has_rows and not rank.steps:
        ledger.add("ending", "it has finished and has no step", rank=rank.rank)
    if rank.tail is not None and isinstance(exit_code, int) and exit_code != 0:
        summary = f"the command failed with exit code {exit_code} and cut the step short"
        ledger.add("ending", summary, rank=rank.rank, step=rank.tail)


def _steps(steps: list[int]) -> str:
    return f"steps {numbers_text(steps)}" if steps else "no steps"


def _array(numbers: Ints) -> "array[int]":
    return array("i", numbers.astype("i").tobytes())


def _plain(value: Any) -> Any:
    return value.bytes if hasattr(value, "bytes") else value


def _shown(names: list[str]) -> str:
    """Return names of columns; the totals follow from the groups."""
    groups = [n for n in names if n.startswith(("content_", "structure_"))]
    return ", ".join(groups or names)
