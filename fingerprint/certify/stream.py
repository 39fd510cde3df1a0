"""A rank's events, step by step: no more than one step and one row group are in memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fpdiff.fingerprint.bisect.arm import Ints, digest_words, ints
from fpdiff.fingerprint.certify.sites import Numbering
from fpdiff.store.errors import StoreError
from fpdiff.store.events import one_piece
from fpdiff.store.run import RankRecord
from fpdiff.store.schema import EVENTS


@dataclass(frozen=True)
class StepEvents:
    """The events of one step of a rank, in order.

    Attributes:
        step: the step.
        seq: number of each event.
        microbatch: of each event.
        site: common number of each event's site, see `sites.Sites`.
        digest: as (events, 2) words.
    """

    step: int
    seq: Ints
    microbatch: Ints
    site: Ints
    digest: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.seq)

    def head(self, count: int) -> "StepEvents":
        """Return the first events."""
        return StepEvents(
            self.step,
            self.seq[:count],
            self.microbatch[:count],
            self.site[:count],
            self.digest[:count],
        )


def read_steps(record: RankRecord, numbering: Numbering) -> Iterator[StepEvents]:
    """Yield all steps of a rank, an open one too.

    Raises:
        StoreError: a file is damaged.
    """
    pending: list[pa.RecordBatch] = []
    try:
        for batch in record.event_batches():
            for part in _by_step(batch):
                if pending and pending[-1]["step"][0] != part["step"][0]:
                    yield to_arrays(pa.Table.from_batches(pending, EVENTS), numbering)
                    pending = []
                pending.append(part)
    except StoreError:
        # Row groups end where steps do, so the step before one that is damaged is whole.
        if pending:
            yield to_arrays(pa.Table.from_batches(pending, EVENTS), numbering)
        raise
    if pending:
        yield to_arrays(pa.Table.from_batches(pending, EVENTS), numbering)


def to_arrays(table: pa.Table, numbering: Numbering) -> StepEvents:
    """Return events of one step as arrays."""
    return StepEvents(
        int(table["step"][0].as_py()),
        ints(table["seq"]),
        ints(table["microbatch"]),
        numbering(ints(table["site"])),
        digest_words(one_piece(table["digest"])),
    )


def _by_step(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not len(batch):
        return
    steps = batch["step"].to_numpy()
    ends = [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for start, end in zip([0, *ends], ends, strict=False):
        yield batch.slice(start, end - start)
