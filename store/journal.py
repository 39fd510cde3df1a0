"""Reading a journal: the segment that is not Parquet yet, up to its last whole batch."""

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fpdiff.store.checks import check_nulls, check_schema, damaged, naming
from fpdiff.store.columns import steps_table
from fpdiff.store.places import Place, local, open_file
from fpdiff.store.schema import EVENTS, SITES

_END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Ends an IPC stream that was finished."""


@dataclass(kw_only=True)
class Journal:
    """What a journal holds."""

    path: Place
    batches: list[pa.RecordBatch] = field(default_factory=list)
    sites: pa.Table
    steps: pa.Table
    whole: bool  # it has an end mark: the recorder finished it

    def table(self, name: str) -> pa.Table:
        """Return what it holds of the table `name`, a key of TABLES."""
        if name == "events":
            return pa.Table.from_batches(self.batches, EVENTS)
        return self.sites if name == "sites" else self.steps


def read_journal(path: Place) -> Journal:
    """Read a journal; a tail that was cut off is normal and left out.

    Raises:
        StoreError: whole parts of it are damaged, foreign, or of a newer format.
    """
    with naming(path):
        with open_file(local(path)) as file:
            data = file.read()
        batches, metadata, whole = _read_stream(data, path)
        sites: list[Any] = []
        steps: dict[int, Any] = {}
        for entry in metadata:
            sites.extend(_json(entry, "sites", list, path))
            if row := _json(entry, "step", dict, path):
                # A step may be closed provisionally: the later row counts.
                steps.pop(row["step"], None)
                steps[row["step"]] = row
        site_table = pa.Table.from_pylist(sites, SITES)
        step_table = steps_table(list(steps.values()), bytes.fromhex)
        for table in (site_table, step_table, pa.Table.from_batches(batches, EVENTS)):
            check_nulls(table, path)
        return Journal(path=path, batches=batches, sites=site_table, steps=step_table, whole=whole)


def _read_stream(
    data: bytes, path: Place
) -> tuple[list[pa.RecordBatch], list[dict[bytes, bytes]], bool]:
    batches: list[pa.RecordBatch] = []
    metadata: list[dict[bytes, bytes]] = []
    messages, whole = _count_messages(data)
    if not messages:
        return batches, metadata, whole
    stream = pa.ipc.open_stream(data)
    check_schema(stream.schema, "events", path, what="journal")
    # Only whole messages are read, so whatever fails here is damage and not a cut tail.
    for _ in range(messages - 1):
        batch, extra = stream.read_next_batch_with_custom_metadata()
        batch.validate(full=True)
        batches.append(batch)
        metadata.append(dict(extra or {}))
    return batches, metadata, whole


def _count_messages(data: bytes) -> tuple[int, bool]:
    """Return the number of whole messages at the start of an IPC stream, and if it has its end."""
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
    count = 0
    while True:
        try:
            reader.read_next_message()
        except StopIteration:
            return count, data.endswith(_END_MARK)
        except (pa.ArrowException, OSError):
            return count, False
        count += 1


def _json(entry: dict[bytes, bytes], key: str, kind: type, path: Place) -> Any:
    content = json.loads(entry.get(key.encode(), b"null"))
    if content is not None and not isinstance(content, kind):
        raise damaged(path, f"a batch's {key} entry is not what it should be")
    return content or kind()
