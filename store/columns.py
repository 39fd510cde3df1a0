"""Growing columns of events, and the Arrow record batch that they become; rows of steps likewise.

An EventColumns holds the events since the last flush; appending costs a few list-like appends and
keeps no Python object per event alive.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fpdiff.store.schema import DIGEST_BYTES, EVENTS, STEPS

_FLOAT64 = pa.float64()


class EventColumns:
    """The columns of the events since `first_seq`, all of one step."""

    def __init__(self, step: int, first_seq: int) -> None:
        """Start empty; the first event appended gets the number `first_seq`."""
        self.step = step
        self.first_seq = first_seq
        self.microbatches = array("i")
        self.sites = array("i")
        self.digests = bytearray()
        self.inputs = array("q")  # seqs; how far back each lies is worked out for all at once
        self.input_ends = array("i", [0])
        self.spans = array("i")
        self.values: dict[int, float] = {}
        self.late_values: dict[int, int] = {}  # placeholders of values that a device still has
        self.stats: dict[int, tuple[float, float, int]] = {}
        self.kernels: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """Return the number of events held."""
        return len(self.sites)

    def append(
        self, microbatch: int, site: int, digest: bytes, inputs: Sequence[int], span: int
    ) -> int:
        """Add one event and return its seq.

        Args:
            microbatch: number of the microbatch within the step.
            site: number of a site already given to the writer.
            digest: 16 bytes.
            inputs: seqs of the events that this one reads.
            span: it also reads that many events just before it.
        """
        seq = self.first_seq + len(self.sites)
        self.microbatches.append(microbatch)
        self.sites.append(site)
        self.digests += digest
        if inputs:
            self.inputs.extend(inputs)
        self.input_ends.append(len(self.inputs))
        self.spans.append(span)
        return seq

    def digest_array(self) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
        """Return the digests as an (n, 16) array of bytes."""
        return np.frombuffer(bytes(self.digests), np.uint8).reshape(-1, DIGEST_BYTES)

    def to_batch(self) -> pa.RecordBatch:
        """Return the events as one record batch of EVENTS."""
        count = len(self)
        seqs = np.arange(self.first_seq, self.first_seq + count, dtype=np.int64)
        ends = np.array(self.input_ends, np.int32)
        back = np.repeat(seqs, np.diff(ends)) - np.array(self.inputs, np.int64)
        inputs = pa.ListArray.from_arrays(pa.array(ends), pa.array(back, pa.int32()))
        digests = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(DIGEST_BYTES), count, [None, pa.py_buffer(bytes(self.digests))]
        )
        stats = [_sparse({i: row[k] for i, row in self.stats.items()}, count) for k in (0, 1)]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(count, self.step, np.int64)),
                pa.array(np.array(self.microbatches, np.int32)),
                pa.array(seqs),
                pa.array(np.array(self.sites, np.int32)),
                pa.ExtensionArray.from_storage(pa.uuid(), digests),
                inputs,
                pa.array(np.array(self.spans, np.int32)),
                _sparse(self.values, count),
                *stats,
                _sparse({i: row[2] for i, row in self.stats.items()}, count, pa.int64()),
                _sparse(self.kernels, count, pa.list_(pa.string())),
            ],
            schema=EVENTS,
        )


def steps_table(
    rows: Sequence[Mapping[str, Any]], read_digest: Callable[[Any], bytes] = bytes
) -> pa.Table:
    """Return rows of STEPS as a table; what a row lacks is null.

    Args:
        rows: by column; other keys are left out.
        read_digest: makes the 16 bytes of a digest of what a row holds.
    """
    columns = []
    for column in STEPS:
        values = [row.get(column.name) for row in rows]
        if column.type == pa.uuid():
            digests = [None if value is None else read_digest(value) for value in values]
            storage = pa.array(digests, pa.binary(DIGEST_BYTES))
            columns.append(pa.ExtensionArray.from_storage(pa.uuid(), storage))
        else:
            columns.append(pa.array(values, column.type))
    return pa.Table.from_arrays(columns, schema=STEPS)


def _sparse(values: Mapping[int, Any], count: int, kind: pa.DataType = _FLOAT64) -> pa.Array:
    if not values:
        return pa.nulls(count, kind)
    dense: list[Any] = [None] * count
    for index, value in values.items():
        dense[index] = value
    return pa.array(dense, kind)
