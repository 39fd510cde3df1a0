"""Small runs made up for tests: written with the real writer, no torch, no model."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fpdiff.store.columns import EventColumns
from fpdiff.store.files import write_json
from fpdiff.store.run import Run
from fpdiff.store.schema import ADDED, DIGEST_ALGORITHM, VERSION
from fpdiff.store.writer import RankWriter, SegmentLimits


def digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def site(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "site": number,
        "phase": "forward",
        "kind": "output",
        "module": f"layers.{number}",
        "module_class": "Linear",
        "call": 0,
        "op": None,
        "occurrence": 0,
        "slot": "out.0",
        "members": None,
        "dtype": "float32",
        "shape": [2, number + 1],
        "source": None,
    }
    return row | changes


def step_row(step: int, first_seq: int, events: int, **changes: Any) -> dict[str, Any]:
    row = {
        "step": step,
        "first_seq": first_seq,
        "events": events,
        "microbatches": 1,
        "ended": True,
        "content": digest("content", step),
        "structure": digest("structure", step),
        "chain": digest("chain", step),
        "content_forward": digest("content_forward", step),
    }
    return row | changes


def write_run_json(root: Path, **changes: Any) -> None:
    root.mkdir(parents=True, exist_ok=True)
    info = {
        "schema": VERSION,
        "digest": DIGEST_ALGORITHM,
        "level": "layer",
        "command": ["python", "train.py"],
        "created": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:05:05+00:00",
        "exit_code": 0,
        "settings": {"steps": "all"},
    }
    write_json(root / "run.json", info | changes)


@dataclass(kw_only=True)
class Shape:
    """How large a made-up rank is, and how it ends."""

    steps: int = 5
    events: int = 6
    sites: int = 3
    limits: SegmentLimits = field(default_factory=lambda: SegmentLimits(steps=2))
    close: bool = True
    info: dict[str, Any] | None = None


def write_rank(root: Path, rank: int = 0, shape: Shape | None = None) -> None:
    """Write a rank; its last site is the loss, whose value is the step's number."""
    shape = shape or Shape()
    writer = RankWriter(root, rank, limits=shape.limits)
    environment = {"torch": "2.13.0", "python": "3.11.7", "hostname": f"node{rank // 8}"}
    writer.write_info(
        shape.info
        if shape.info is not None
        else {"environment": environment, "blind_spots": {}, "finished": shape.close}
    )
    for number in range(shape.sites):
        kind = {"kind": "loss", "module": ""} if number == shape.sites - 1 else {}
        writer.add_site(site(number, **kind))
    seq = 0
    for step in range(shape.steps):
        columns = EventColumns(step, seq)
        for index in range(shape.events):
            inputs = [seq - 1] if index else []
            number = index % shape.sites
            columns.append(0, number, digest(rank, seq), inputs, min(index, 1))
            if number == shape.sites - 1:
                columns.values[index] = float(step)
            seq += 1
        row = step_row(step, seq - shape.events, shape.events)
        writer.flush(columns, row)
        writer.end_segment_if_full()
    if shape.close:
        writer.close()
    else:
        kill(writer)


def kill(writer: RankWriter) -> None:
    """Leave the disk as SIGKILL would after the background thread has caught up."""
    if writer._thread is not None:
        writer._closed.put(None)
        writer._thread.join()
        writer._thread = None
    if writer._stream is not None:
        writer._file.close()
        writer._stream = None


def write_run(root: Path, ranks: int = 1, shape: Shape | None = None, **changes: Any) -> Path:
    write_run_json(root, **changes)
    for rank in range(ranks):
        write_rank(root, rank, shape)
    return root


def make_old(root: Path, version: int) -> None:
    """Rewrite a run's Parquet files as an older version had them."""
    for path in root.rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        gone = [c for (t, c), since in ADDED.items() if t in path.parts and since > version]
        table = table.drop_columns(gone).replace_schema_metadata({"fpdiff.schema": str(version)})
        pq.write_table(table, path, write_page_checksum=True)


def file_of(root: Path, table: str, segment: int = 0) -> Path:
    """Return the path of one of rank 0's files."""
    return root / table / "rank=00000" / f"seg-{segment:05d}.parquet"


def read_all(root: Path) -> list[dict[str, Any]]:
    """Read all tables of rank 0; return the events."""
    record = Run.open(root).ranks[0]
    record.sites()
    record.steps()
    return [row for batch in record.event_batches() for row in batch.to_pylist()]


def flush(writer: RankWriter, step: int, first_seq: int, **changes: Any) -> None:
    """Write one event of a step."""
    columns = EventColumns(step, first_seq)
    columns.append(
        0,
        changes.get("site", 0),
        digest(first_seq),
        [first_seq - offset for offset in changes.get("offsets", ())],
        changes.get("span", 0),
    )
    writer.flush(columns, changes.get("row"))
