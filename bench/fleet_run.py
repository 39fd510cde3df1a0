"""Writes runs of thousands of ranks, fast, as the recorder would have written them.

Every rank trains the same model on data of its own, and all of them reduce their gradients with
one another, so that from the step after a difference on, every rank differs. Step rows follow
from the events as the recorder makes them: `fpdiff certify` finds such a run whole.
"""

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.fingerprint.record.events.steprow import StepRow
from fpdiff.store.columns import EventColumns
from fpdiff.store.files import write_json
from fpdiff.store.schema import (
    DIGEST_ALGORITHM,
    DIGEST_BYTES,
    EVENTS,
    GROUPS,
    SITES,
    STEPS,
    VERSION,
    rank_name,
)
from fpdiff.store.writer import ROW_GROUP_EVENTS, SegmentLimits, write_segment

Bytes = npt.NDArray[np.uint8]

_FIXED_EVENTS = 6
_EVENTS_OF_A_LAYER = 6


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A run of many ranks.

    Attributes:
        ranks: how many; `steps` likewise.
        layers: of the model; each adds 6 events to a step's 6 others.
        shards: rank r holds the parameters of shard r % shards, as it would in a model that is
            split over ranks.
        planted: (rank, step) of the difference, in the output of the model's middle layer.
        segment_steps: a segment holds so many steps.
    """

    ranks: int
    steps: int
    layers: int = 2
    shards: int = 1
    planted: tuple[int, int] | None = None
    segment_steps: int = SegmentLimits().steps

    @property
    def events_of_a_step(self) -> int:
        """How many events a rank leaves in a step."""
        return _FIXED_EVENTS + _EVENTS_OF_A_LAYER * self.layers

    @cached_property
    def program(self) -> "Program":
        """What every rank runs in every step."""
        return Program(self.layers)


def layers_for(events: int) -> int:
    """Return the layers of a model that leaves about so many events in a step."""
    return max(1, round((events - _FIXED_EVENTS) / _EVENTS_OF_A_LAYER))


class Program:
    """The events of a step, which are the same points of the program on all ranks."""

    def __init__(self, layers: int) -> None:
        """Lay out a step of a model of so many layers."""
        self.rows: list[dict[str, Any]] = []
        self.reads: list[list[int]] = []
        self.spans: list[int] = []
        self.values: list[float | None] = []
        self._names: dict[str, int] = {}
        self._table = SiteTable(self.rows.append)
        self._lay_out([f"layers.{n}" for n in range(layers)])
        self.sites = pa.Table.from_pylist(self.rows, SITES)
        self.weights, self.reduced, self.updated = (
            np.array([self._names[f"{prefix} layers.{n}"] for n in range(layers)])
            for prefix in ("weight", "reduced", "updated")
        )
        self.middle = self._names[f"out layers.{layers // 2}"]
        self.masks = self._table.masks()
        # What other weights change: all but what a step is given from outside.
        given = [self._names[name] for name in ("generator", "lr", "batch")]
        self.follows = np.setdiff1d(np.arange(len(self.rows)), given)
        self.follows_here = self.follows[self.follows >= self.middle]
        self.follows_elsewhere = np.concatenate([self.reduced, self.updated])

    def row(self) -> dict[str, Any]:
        """Return a row of STEPS as the recorder makes it; its structure is that of every step."""
        columns = EventColumns(0, 0)
        for site in range(len(self.rows)):
            columns.append(0, site, bytes(DIGEST_BYTES), [], 0)
        row = StepRow(0, 0, bytes(DIGEST_BYTES))
        row.add(columns, self._table)
        return row.row(ended=True)

    def _lay_out(self, names: list[str]) -> None:
        for name in names:
            self._add(f"weight {name}", "init", "parameter", name, "weight")
        self._add("generator", "init", "generator", "", "torch.cpu")
        self._add("lr", "init", "option", "", "optimizer0.group0.lr", value=0.1)
        self._add("batch", "forward", "input", "", "arg.0")
        before = "batch"
        for name in names:
            self._add(f"out {name}", "forward", "output", name, "out.0", [before, f"weight {name}"])
            before = f"out {name}"
        self._add("out", "forward", "output", "", "out.0", [before])
        self._add("loss", "forward", "loss", "", "loss.0", ["out"], value=2.5)
        self._add("back", "backward", "gradient", "", "grad.out.0", ["loss"])
        before = "back"
        for name in reversed(names):
            reads = [before, f"weight {name}", f"out {name}"]
            before = f"back {name}"
            self._add(before, "backward", "gradient", name, "grad.out.0", reads)
            self._add(f"local {name}", "backward", "local_gradient", name, "grad.weight", [before])
        for name in names:
            reads = [f"local {name}"]
            self._add(
                f"reduced {name}", "optimizer", "reduced_gradient", name, "grad.weight", reads
            )
        for name in names:
            reads = [f"weight {name}", f"reduced {name}", "lr"]
            self._add(f"updated {name}", "optimizer", "parameter", name, "weight", reads)

    def _add(
        self,
        name: str,
        phase: str,
        kind: str,
        module: str,
        slot: str,
        reads: Iterable[str] = (),
        value: float | None = None,
    ) -> None:
        is_tensor = kind not in ("generator", "option")
        dtype, shape = ("float32", (64, 64)) if is_tensor else ("", ())
        point = Point(phase, kind, module, "Linear" if module else "Model", 0, slot)
        index = self._names[name] = len(self.rows)
        self._table.number((point, 0, dtype, shape), "")
        self.reads.append([index - self._names[read] for read in reads])
        self.spans.append(0)
        self.values.append(value)


def write_fleet(root: Path, fleet: Fleet, processes: int = 1) -> Path:
    """Write a run; more processes write faster."""
    root.mkdir(parents=True)
    info: dict[str, Any] = {"schema": VERSION, "digest": DIGEST_ALGORITHM, "level": "layer"}
    info |= {"command": ["python", "train.py"], "created": "2026-01-01T00:00:00+00:00"}
    info |= {"ended": "2026-01-01T01:00:00+00:00", "exit_code": 0, "settings": {}}
    write_json(root / "run.json", info)
    if processes == 1:
        _write_ranks(root, fleet, range(fleet.ranks))
    else:
        parts = [range(first, fleet.ranks, processes) for first in range(processes)]
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for done in [pool.submit(_write_ranks, root, fleet, part) for part in parts]:
                done.result()
    return root


def _write_ranks(root: Path, fleet: Fleet, ranks: Iterable[int]) -> None:
    world = list(range(fleet.ranks))
    (root / "ranks").mkdir(exist_ok=True)
    shared = [_shared(fleet, shard) for shard in range(fleet.shards)]
    for rank in ranks:
        _write_info(root, rank, world)
        (root / "journal" / rank_name(rank)).mkdir(parents=True)
        digests = _digests(fleet, rank, *shared[rank % fleet.shards])
        steps = _steps(fleet, digests)
        for index, first in enumerate(range(0, fleet.steps, fleet.segment_steps)):
            end = min(first + fleet.segment_steps, fleet.steps)
            write_segment(
                root,
                rank,
                index,
                sites=fleet.program.sites if not index else SITES.empty_table(),
                steps=steps.slice(first, end - first),
                batches=_batches(fleet, digests, first, end),
            )


def _write_info(root: Path, rank: int, world: list[int]) -> None:
    """Write a rank's description, of the size that a real one has."""
    environment: dict[str, Any] = {
        "decides.torch": "2.13.0",
        "decides.python": "3.11.7",
        "decides.cpu": "some processor",
        "decides.threads": 1,
        "decides.deterministic_algorithms": False,
        "decides.devices": ["some accelerator"] * 8,
        **{f"decides.env.NCCL_SETTING_{n}": str(n) for n in range(16)},
        "hostname": f"node{rank // 8:04d}",
        "pid": 1000 + rank,
        "argv": ["train.py"],
        "local_rank": str(rank % 8),
        "world_size": len(world),
        "process_groups": [{"backend": "nccl", "ranks": world}] if len(world) > 1 else [],
        "coordinates": {},
    }
    info = {"rank": rank, "environment": environment, "blind_spots": {}, "settings": {}}
    write_json(root / "ranks" / f"{rank_name(rank)}.json", info | {"finished": True})


def _shared(fleet: Fleet, shard: int) -> tuple[Bytes, Bytes]:
    """Return the digests of a shard's weights before each step and after, and of its gradients."""
    layers = fleet.layers
    found = _random([1, shard], (2 * fleet.steps + 1) * layers)
    weights = found[: (fleet.steps + 1) * layers].reshape(fleet.steps + 1, layers, DIGEST_BYTES)
    return weights, found[(fleet.steps + 1) * layers :].reshape(-1, layers, DIGEST_BYTES)


def _random(seed: list[int], count: int) -> Bytes:
    found = np.frombuffer(np.random.default_rng(seed).bytes(count * DIGEST_BYTES), np.uint8)
    return found.reshape(count, DIGEST_BYTES)


def _digests(fleet: Fleet, rank: int, weights: Bytes, reduced: Bytes) -> Bytes:
    """Return the digests of a rank's events, (steps, events, 16)."""
    program = fleet.program
    size = fleet.events_of_a_step
    digests: Bytes = _random([2, rank], fleet.steps * size).reshape(-1, size, DIGEST_BYTES).copy()
    digests[:, program.weights] = weights[:-1]
    digests[:, program.updated] = weights[1:]
    digests[:, program.reduced] = reduced
    if fleet.planted is not None:
        origin, step = fleet.planted
        here = program.follows_here if rank == origin else program.follows_elsewhere
        digests[step, here] ^= 0x5A
        later = digests[step + 1 :]
        later[:, program.follows] ^= 0x5A
    return digests


def _steps(fleet: Fleet, digests: Bytes) -> pa.Table:
    """Return a rank's rows of STEPS."""
    template, masks = fleet.program.row(), fleet.program.masks
    apart = sum(1 << GROUPS.index(name) for name in ("generator", "metrics"))
    members = {f"content_{g}": masks >> bit & 1 == 1 for bit, g in enumerate(GROUPS)}
    members["content"] = masks & apart == 0
    content = {
        name: _row_digests(digests[:, which]) for name, which in members.items() if which.any()
    }
    chains, chain = bytearray(), bytes(DIGEST_BYTES)
    totals = content["content"]
    for at in range(0, len(totals), DIGEST_BYTES):
        chain = digest_bytes(chain + totals[at : at + DIGEST_BYTES] + template["structure"])
        chains += chain
    numbers = np.arange(fleet.steps, dtype=np.int64)
    size = fleet.events_of_a_step
    columns: dict[str, Any] = {
        "step": numbers,
        "first_seq": numbers * size,
        "events": np.full(fleet.steps, size, np.int64),
        "microbatches": np.ones(fleet.steps, np.int32),
        "ended": np.ones(fleet.steps, bool),
        "chain": _uuids(bytes(chains)),
    }
    columns |= {name: _uuids(found) for name, found in content.items()}
    columns |= {
        name: _uuids(template[name] * fleet.steps) for name in template if "structure" in name
    }
    empty = pa.nulls(fleet.steps, pa.uuid())
    return pa.table([columns.get(name, empty) for name in STEPS.names], schema=STEPS)


def _row_digests(digests: Bytes) -> bytes:
    """Return the digest of each row's bytes, one after the other."""
    rows = digests.reshape(len(digests), -1)
    return b"".join(digest_bytes(memoryview(row)) for row in rows)  # type: ignore[arg-type]


def _uuids(digests: bytes) -> pa.Array:
    count = len(digests) // DIGEST_BYTES
    storage = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(DIGEST_BYTES), count, [None, pa.py_buffer(digests)]
    )
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _batches(fleet: Fleet, digests: Bytes, first: int, end: int) -> list[pa.RecordBatch]:
    """Return the events of some steps, in batches that row groups may be cut between."""
    size = fleet.events_of_a_step
    stride = max(1, ROW_GROUP_EVENTS // size + 1)
    return [
        _batch(fleet.program, digests[at : min(at + stride, end)], at)
        for at in range(first, end, stride)
    ]


def _batch(program: Program, digests: Bytes, first: int) -> pa.RecordBatch:
    steps, size, _ = digests.shape
    numbers = np.arange(steps * size, dtype=np.int64)
    counts = np.tile([len(reads) for reads in program.reads], steps)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    offsets = np.array([o for reads in program.reads for o in reads], np.int32)
    nothing = pa.nulls(len(numbers), pa.float64())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(first + numbers // size),
            pa.array(np.zeros(len(numbers), np.int32)),
            pa.array(first * size + numbers),
            pa.array((numbers % size).astype(np.int32)),
            _uuids(digests.tobytes()),
            pa.ListArray.from_arrays(pa.array(ends), pa.array(np.tile(offsets, steps))),
            pa.array(np.tile(np.array(program.spans, np.int32), steps)),
            pa.array(program.values * steps, pa.float64()),
            nothing,
            nothing,
            pa.nulls(len(numbers), pa.int64()),
            pa.nulls(len(numbers), pa.list_(pa.string())),
        ],
        schema=EVENTS,
    )
