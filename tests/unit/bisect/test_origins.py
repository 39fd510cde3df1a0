"""Splitting what differs into origins and carriers, and leaving out what does not count."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from synthetic_runs import Ev, ev, write_steps

from fpdiff.fingerprint.bisect.align import Aligned, align
from fpdiff.fingerprint.bisect.arm import Arm, Keys, Sites
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.origins import blocks, find_origins
from fpdiff.store.run import Run
from fpdiff.store.schema import EVENTS, SITES


def aligned(path: Path, a: list[Ev], b: list[Ev]) -> Aligned:
    keys = Keys()
    arms = []
    for name, events in (("a", a), ("b", b)):
        record = Run.open(write_steps(path / name, [events])).ranks[0]
        arms.append(Arm(record, 0, Sites(record, keys, Lens(None, ()))))
    return align(*arms)


def graph(*different: str) -> list[Ev]:
    events = [
        ev("w", "parameter", "w", phase="init"),
        ev("g", "generator", "", "torch.cpu", phase="init"),
        ev("x", "output", "x", reads=["w"]),
        ev("y", "output", "y", reads=["x"]),
        ev("z", "output", "z", reads=["w"], span=2),
        ev("m", "metric", "", "norm", phase="other"),
    ]
    for event in events:
        event.twist = event.name in different
    return events


@pytest.mark.parametrize(
    ("different", "origins", "carriers"),
    [
        ("", "", 0),
        ("x", "x", 0),
        ("xy", "x", 1),
        ("yz", "y", 1),
        ("xyz", "x", 2),
        ("wz", "w", 1),
        ("wxyz", "w", 3),
        ("gm", "", 0),
        ("gmz", "z", 0),
    ],
)
def test_origins_read_nothing_that_differs(
    tmp_path: Path, different: str, origins: str, carriers: int
) -> None:
    rows = aligned(tmp_path, graph(), graph(*different))
    findings = find_origins(rows)
    assert [rows.site(row)["module"] for row in findings.origins.tolist()] == list(origins)
    assert findings.num_carriers == carriers
    assert bool(findings) == bool(origins)


def test_an_input_in_either_run_explains(tmp_path: Path) -> None:
    a = graph()
    b = graph("x", "y")
    a[3].reads = []  # Only B's y read x.
    findings = find_origins(aligned(tmp_path, a, b))
    assert (len(findings.origins), findings.num_carriers) == (1, 1)


def test_moved_quiet_events_do_not_count(tmp_path: Path) -> None:
    a, b = graph(), graph()
    b.insert(0, b.pop(5))
    b.insert(0, b.pop(2))
    assert not find_origins(aligned(tmp_path, a, b))


def outside(name: str, kind: str = "result", **changes: Any) -> Ev:
    return ev(name, kind, phase="other", op=f"aten.{name}.default", **changes)


def counted(rows: Aligned) -> tuple[list[str], int]:
    """Return the operators that are origins, and how many lead to nothing."""
    findings = find_origins(rows)
    return [rows.site(r)["op"] for r in findings.origins.tolist()], findings.num_idle


@pytest.mark.parametrize("hole", [False, True])
def test_what_is_made_otherwise_of_equal_things_counts_unless_of_garbage(
    tmp_path: Path, hole: bool
) -> None:
    """And so does what is made of it, though nothing in the model reads either."""

    def events(twist: bool) -> list[Ev]:
        first = outside("w", "uninitialised" if hole else "input")
        made = outside("mul", reads=["w"], twist=twist)
        return [first, made, outside("add", reads=["mul"], twist=twist)]

    rows = aligned(tmp_path, events(False), events(True))
    assert counted(rows) == (([], 2) if hole else (["aten.mul.default"], 0))


def test_a_number_that_one_run_alone_took_explains_nothing(tmp_path: Path) -> None:
    def events(*taken: Ev) -> list[Ev]:
        reads = [event.name for event in taken]
        told = ev("alpha", "arguments", "l0", op="aten.add.Tensor", reads=reads, twist=reads)
        return [ev("w", "parameter", "l0", phase="init"), *taken, told]

    assert counted(aligned(tmp_path, events(), events(outside("item", "number")))) == (
        ["aten.add.Tensor"],
        1,
    )


def test_blocks_number_stretches() -> None:
    assert blocks(np.array([5, 5, 7, 7, 5]), np.array([0, 1, 1, 1, 1])).tolist() == [0, 1, 2, 2, 3]
    assert blocks(np.zeros(0, np.int64)).tolist() == []


class Made:
    """A rank's record that was never on disk: a million events take a second to make."""

    def __init__(self, count: int, num_sites: int, shuffle: bool = False) -> None:
        index = np.arange(count)
        site = index % num_sites
        if shuffle:
            site[1::2], site[::2] = site[::2].copy(), site[1::2].copy()
        digests = np.zeros((count, 2), np.uint64)
        digests[:, 0] = site
        self.digests = digests
        offsets = pa.array(np.minimum(np.arange(count + 1), count - 1).astype(np.int32))
        inputs = pa.ListArray.from_arrays(offsets, pa.array(np.ones(count - 1, np.int32)))
        self.columns: dict[str, Any] = {
            "step": pa.array(np.zeros(count, np.int64)),
            "microbatch": pa.array((index // num_sites).astype(np.int32)),
            "seq": pa.array(index),
            "site": pa.array(site.astype(np.int32)),
            # Each event but the first reads the one before it.
            "inputs": pa.concat_arrays([inputs[count - 1 :], inputs[: count - 1]]),
            "span": pa.array(np.zeros(count, np.int32)),
        }
        rows = [
            {
                "site": n,
                "phase": "forward",
                "kind": "output",
                "module": f"m{n}",
                "module_class": "",
                "call": 0,
                "op": None,
                "occurrence": 0,
                "slot": "out.0",
                "dtype": "float32",
                "shape": [1],
            }
            for n in range(num_sites)
        ]
        self._sites = pa.Table.from_pylist(rows, SITES)

    def sites(self) -> pa.Table:
        return self._sites

    def events(self, step: int) -> pa.Table:
        buffer = pa.py_buffer(self.digests.tobytes())
        storage = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(self.digests), [None, buffer]
        )
        columns = self.columns | {"digest": pa.ExtensionArray.from_storage(pa.uuid(), storage)}
        count = len(self.digests)
        for name in ("value", "l2", "absmax", "nonfinite", "kernels"):
            columns[name] = pa.nulls(count, EVENTS.field(name).type)
        return pa.table([columns[name] for name in EVENTS.names], schema=EVENTS)


def arm(made: Any, keys: Keys) -> Arm:
    return Arm(made, 0, Sites(made, keys, Lens(None, ())))


@pytest.mark.parametrize("shuffle", [False, True])
def test_many_events_and_mismatches_take_seconds_not_minutes(shuffle: bool) -> None:
    # A walk over pairs of mismatches would take minutes at this size.
    a, b = Made(300_000, 1000), Made(300_000, 1000, shuffle)
    b.digests[1000:101_000:2, 1] = 1
    begin = time.monotonic()
    keys = Keys()
    rows = align(arm(a, keys), arm(b, keys))
    findings = find_origins(rows)
    assert len(findings.mismatched) >= 50_000
    assert len(findings.moved) == (150_000 if shuffle else 0)
    for row in findings.origins[:200].tolist():
        owner, index = rows.arm_of(row)
        assert len(owner.producers(index)) <= 1
    assert time.monotonic() - begin < 20


def test_of_modules_that_change_places_only_the_one_that_moved_is_told(tmp_path: Path) -> None:
    """Each reads what the other made, in one of the runs: neither is an origin."""

    def chain(*names: str) -> list[Ev]:
        before = [[], *([name] for name in names)]
        return [
            ev(name, "output", name, reads=reads, value=names)
            for name, reads in zip(names, before, strict=False)
        ]

    rows = aligned(tmp_path, chain("a", "b", "c"), chain("c", "a", "b"))
    findings = find_origins(rows)
    assert not findings.origins.size
    assert [rows.site(row)["module"] for row in findings.moved.tolist()] == ["c"]
