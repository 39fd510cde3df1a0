"""Writes runs of operators' events, as the recorder would have written them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from fpdiff.store.columns import EventColumns
from fpdiff.store.files import write_json
from fpdiff.store.schema import DIGEST_ALGORITHM, VERSION
from fpdiff.store.writer import RankWriter

SITES = 20_000
"""Calls of operators in a microbatch: more events of a step are further microbatches."""

PHASES = ("forward", "backward", "optimizer")

Step: TypeAlias = tuple[EventColumns, dict[str, Any]]
"""A step's events, and its row of STEPS."""


def write(root: Path, events: int, steps: int, *, differs: bool) -> None:
    """Write a run; if it differs, from the middle of its last step on."""
    writer = begin(root, events // steps)
    for columns, row in steps_of(events, steps, differs=differs):
        writer.end_segment_if_full()
        writer.flush(columns, row)
    writer.close()


def begin(root: Path, events_of_a_step: int) -> RankWriter:
    """Return a writer that has everything but steps."""
    root.mkdir(parents=True)
    info: dict[str, Any] = {"schema": VERSION, "digest": DIGEST_ALGORITHM, "level": "op"}
    info |= {"command": ["python", "train.py"], "created": "2026-01-01T00:00:00+00:00"}
    write_json(root / "run.json", info | {"settings": {}, "exit_code": 0})
    writer = RankWriter(root, 0)
    writer.write_info({"rank": 0, "environment": {}, "settings": {}, "finished": True})
    sites = min(events_of_a_step, SITES)
    for site in range(sites):
        writer.add_site(_site(site, sites))
    return writer


def steps_of(events: int, steps: int, *, differs: bool) -> Iterator[Step]:
    """Yield the steps of a run of so many events."""
    per_step = events // steps
    sites = min(per_step, SITES)
    for step in range(steps):
        columns = EventColumns(step, step * per_step)
        middle = columns.first_seq + per_step // 2
        for index in range(per_step):
            seq = columns.first_seq + index
            wrong = differs and step == steps - 1 and seq >= middle and (seq - middle) % 4 == 0
            # A chain of every fourth event: each reads its neighbour four before, and another.
            reads = [s for s in (seq - 4, seq - 64) if s >= columns.first_seq]
            columns.append(index // sites, index % sites, _digest(seq, wrong), reads, 0)
        yield columns, _row(columns)


def _site(site: int, sites: int) -> dict[str, Any]:
    layer, op = divmod(site, 50)
    return {
        "site": site,
        "phase": PHASES[3 * site // sites],
        "kind": "result",
        "module": f"layers.{layer % 100}",
        "module_class": "Block",
        "call": 0,
        "op": f"aten.op{op}.default",
        "occurrence": layer // 100,
        "slot": "out.0",
        "members": None,
        "dtype": "float32",
        "shape": [4, 8],
    }


def _digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def _row(columns: EventColumns) -> dict[str, Any]:
    content = hashlib.blake2b(bytes(columns.digests), digest_size=16).digest()
    row: dict[str, Any] = {
        "step": columns.step,
        "first_seq": columns.first_seq,
        "events": len(columns),
    }
    row |= {
        "microbatches": columns.microbatches[-1] + 1,
        "ended": True,
        "content": content,
        "chain": content,
    }
    return row | {"structure": bytes(16), "content_forward": content}
