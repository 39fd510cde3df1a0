"""Whole runs made up for tests: a small training job as a list of events, no torch model.

`Job().arm(root)` writes what a recorder would have written of a two-layer model: each event's
value follows from what it read, so a difference planted in one event spreads as it would in a real
job, through the layers, the gradients' reduction, the optimizer and into the next step. A test
plants it with an edit of the events of one step of one rank:

    def edit(step, rank, events):
        if (step, rank) == (3, 1):
            find(events, "l1.out").twist = "a flipped bit"
    a, b = Job().arm(tmp / "a"), Job(edit=edit).arm(tmp / "b")
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from synthetic import digest, kill, write_run_json

from fpdiff.fingerprint.bisect.compare import compare_runs
from fpdiff.fingerprint.bisect.verdict import Verdict
from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.fingerprint.record.events.steprow import StepRow
from fpdiff.store.columns import EventColumns
from fpdiff.store.run import Run
from fpdiff.store.writer import RankWriter

ENVIRONMENT = {"decides.torch": "2.13.0", "decides.threads": 1, "hostname": "here"}


@dataclass
class Ev:
    """One event. `name` is how others refer to it in `reads`; it is not recorded.

    A value of 16 bytes is the digest itself. `twist` changes its value, and with it the values of
    all that read it. `span` is a number of
    events or the name of the first event that it reaches back to.
    """

    name: str
    kind: str
    module: str = ""
    slot: str = "out.0"
    phase: str = "forward"
    value: object = None
    reads: list[str] = field(default_factory=list)
    span: int | str = 0
    call: int = 0
    microbatch: int = 0
    dtype: str = "float32"
    shape: tuple[int, ...] = (4, 8)
    module_class: str = "Linear"
    number: float | None = None
    stats: tuple[float, float, int] | None = None
    twist: object = None
    op: str | None = None
    members: str | None = None


def ev(name: str, kind: str, module: str = "", slot: str = "out.0", **changes: Any) -> Ev:
    return Ev(name, kind, module, slot, **changes)


def find(events: list[Ev], name: str) -> Ev:
    return next(event for event in events if event.name == name)


def insert(events: list[Ev], before: str, *new: Ev) -> None:
    index = events.index(find(events, before))
    events[index:index] = new


def remove(events: list[Ev], *names: str) -> None:
    """Remove events; what read one of them reads what that one read."""
    for name in names:
        gone = find(events, name)
        events.remove(gone)
        for event in events:
            if name in event.reads:
                at = event.reads.index(name)
                event.reads[at : at + 1] = gone.reads


Edit = Callable[[int, int, list[Ev]], None]
State = dict[str, bytes]


@dataclass(kw_only=True)
class Job:
    """What is run: how many ranks and steps, at what rung it is recorded, and what is edited."""

    steps: Iterable[int] = range(4)
    ranks: Iterable[int] = (0,)
    layers: int = 2
    microbatches: int = 1
    level: str = "layer"
    edit: Edit | None = None
    clip: bool = False
    group: list[int] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    close: bool = True
    parquet: bool = False  # A journal is as good to read, and written faster.

    def arm(self, root: Path) -> Path:
        """Run the job and write what was recorded."""
        settings = {"steps": [], "modules": "", "rehash": False, "first_step": 0}
        options: dict[str, Any] = {"level": self.level, "settings": settings | self.settings}
        write_run_json(root, **(options | self.run))
        ranks = list(self.ranks)
        group = self.group if self.group is not None else ranks
        groups = [{"ranks": group, "backend": "gloo"}] if len(group) > 1 else []
        environment = ENVIRONMENT | {"process_groups": groups} | self.environment
        info = {"environment": environment, "blind_spots": {}, "finished": self.close}
        writers = {rank: Writer(root, rank, info | self.info) for rank in ranks}
        states: dict[int, State] = {rank: {} for rank in ranks}
        for step in self.steps:
            events = {rank: self.events(step, rank) for rank in ranks}
            values = self._run(step, events, states)
            for rank in ranks:
                shown = [
                    (event, value)
                    for event, value in zip(events[rank], values[rank], strict=True)
                    if self.level != "step" or event.kind not in ("output", "gradient")
                ]
                writers[rank].step(step, shown)
        for writer in writers.values():
            writer.end(close=self.parquet)
        return root

    def events(self, step: int, rank: int) -> list[Ev]:
        """Return the edited events of a step."""
        events = training_step(step, rank, layers=self.layers, microbatches=self.microbatches)
        if self.edit is not None:
            self.edit(step, rank, events)
        return events

    def _run(
        self, step: int, events: dict[int, list[Ev]], states: dict[int, State]
    ) -> dict[int, list[bytes]]:
        """Return each event's digest; what the optimizer does comes after all ranks' backward."""
        values: dict[int, dict[str, bytes]] = {rank: {} for rank in events}
        for late in (False, True):
            for rank, own in events.items():
                for event in own:
                    if (event.phase == "optimizer") == late:
                        values[rank][event.name] = self._value(event, rank, values, states)
        for rank in events:
            for name, value in values[rank].items():
                states[rank][name.removesuffix("'")] = value
        return {rank: [values[rank][e.name] for e in own] for rank, own in events.items()}

    def _value(
        self, event: Ev, rank: int, values: dict[int, dict[str, bytes]], states: dict[int, State]
    ) -> bytes:
        inputs = [values[rank][name] for name in event.reads if name in values[rank]]
        if event.kind == "reduced_gradient":
            # The sum over the group; clipping by the norm couples all gradients.
            local = [n for n in values[rank] if n.startswith("grad ")]
            names = local if self.clip else event.reads
            ranks = sorted(values) if self.group is None else [*self.group]
            inputs = [values[r].get(name, b"") for r in ranks if r in values for name in names]
        kept = event.kind in ("parameter", "optimizer_state", "master", "buffer")
        if event.phase == "init" and kept and event.twist is None and event.name in states[rank]:
            return states[rank][event.name]
        if isinstance(event.value, bytes):
            return event.value
        return digest(event.value, inputs, event.twist)


def training_step(step: int, rank: int, *, layers: int, microbatches: int) -> list[Ev]:
    """Return the events of a step of a model of some layers, each with a weight."""
    init: dict[str, Any] = {"phase": "init"}
    plain: dict[str, Any] = {"phase": "init", "dtype": "", "shape": ()}
    names = [f"l{n}" for n in range(layers)]
    events = [ev(f"{m}.weight", "parameter", m, "weight", value=m, **init) for m in names]
    events += [
        ev("norm.mean", "buffer", "norm", "mean", value="mean", **init),
        *(
            ev(f"{m}.exp_avg", "optimizer_state", m, "weight.exp_avg", value="zero", **init)
            for m in names
        ),
        ev("master", "master", "", "optimizer0.group0.9", value="master", **init),
        ev("python", "generator", "", "python", value="unmoved", **plain),
        ev("torch.cpu", "generator", "", "torch.cpu", value=("cpu", step), **plain),
        ev("training", "training_flag", "", "training", value=True, **plain),
        ev("lr", "option", "", "optimizer0.group0.lr", value=0.1, number=0.1, **plain),
        ev("scale", "scaler", "", "scaler0.scale", value=1.0, number=65536.0, **plain),
    ]
    for number in range(microbatches):
        events += _microbatch(step, rank, names, number)
    first_gradient = next(e.name for e in events if e.phase == "backward")
    last = microbatches - 1
    late: dict[str, Any] = {"phase": "optimizer", "microbatch": last}
    for m in names:
        reads = [f"grad {m}" + (f"#{last}" if last else "")]
        events.append(ev(f"reduced {m}", "reduced_gradient", m, "grad.weight", reads=reads, **late))
        events[-1].span = first_gradient
    for m in names:
        reads = [f"{m}.weight", f"reduced {m}", "lr"]
        events.append(ev(f"{m}.weight'", "parameter", m, "weight", reads=reads, **late))
        reads = [f"{m}.exp_avg", f"reduced {m}"]
        events.append(
            ev(f"{m}.exp_avg'", "optimizer_state", m, "weight.exp_avg", reads=reads, **late)
        )
    return events


def _microbatch(step: int, rank: int, names: list[str], number: int) -> list[Ev]:
    mark = f"#{number}" if number else ""
    own: dict[str, Any] = {"microbatch": number}
    batch = ("batch", step, rank, number)
    events = [ev(f"batch{mark}", "input", "", "arg.0", value=batch, dtype="int64", **own)]
    before = f"batch{mark}"
    for m in names:
        reads = [before, f"{m}.weight"]
        if m == "l1":
            drawn = {"value": ("draw", step, number), "dtype": "", "shape": ()}
            events.append(ev(f"draw{mark}", "generator", "l1", "torch", **drawn, **own))
            reads.append(f"draw{mark}")
        before = f"{m}.out{mark}"
        events.append(ev(before, "output", m, reads=reads, **own))
    loss: dict[str, Any] = {"number": 2.5 + step, "shape": (), **own}
    events.append(ev(f"root.out{mark}", "output", "", reads=[before], **own))
    reads = [f"root.out{mark}"]
    events.append(ev(f"loss{mark}", "loss", "", "loss.0", reads=reads, **loss))
    back = f"loss{mark}"
    first = ""
    own["phase"] = "backward"
    for m in reversed(names):
        reads = [back, f"{m}.weight", f"{m}.out{mark}"]
        back = f"back {m}{mark}"
        events.append(ev(back, "gradient", m, f"grad.{m}.out.0", reads=reads, **own))
        first = first or back
        before = f"grad {m}#{number - 1}" if number > 1 else f"grad {m}"
        own["reads"] = [back, before] if number else [back]  # Gradients accumulate.
        events.append(ev(f"grad {m}{mark}", "local_gradient", m, "grad.weight", span=first, **own))
        del own["reads"]
    return events


class Writer:
    """Writes a rank as the recorder does: sites, step rows and columns by the recorder's code."""

    def __init__(self, root: Path, rank: int, info: dict[str, Any]) -> None:
        self._writer = RankWriter(root, rank)
        self._writer.write_info({"rank": rank} | info)
        self._sites = SiteTable(self._writer.add_site)
        self._chain = bytes(16)

    def step(self, step: int, events: list[tuple[Ev, bytes]]) -> None:
        """Write a step. What read an event that is not written is said to have read all before."""
        first = self._writer.num_events
        columns = EventColumns(step, first)
        row = StepRow(step, first, self._chain)
        seqs: dict[str, int] = {}
        occurrences: Counter[object] = Counter()
        for event, value in events:
            place = Point(
                event.phase,
                event.kind,
                event.module,
                event.module_class,
                event.call,
                event.slot,
                event.op,
                event.members,
            )
            again = (event.microbatch, place)
            key = (place, occurrences[again], event.dtype, torch.Size(event.shape))
            occurrences[again] += 1
            index = len(columns)
            if event.number is not None:
                columns.values[index] = event.number
            if event.stats is not None:
                columns.stats[index] = event.stats
            span = event.span
            if isinstance(span, str):
                span = first + index - seqs[span] if span in seqs else 0
            if not seqs.keys() >= set(event.reads):
                span = index
            reads = sorted(seqs[name] for name in event.reads if name in seqs)
            number = self._sites.number(key)
            seqs[event.name] = columns.append(event.microbatch, number, value, reads, span)
        row.add(columns, self._sites)
        self._chain = row.row(ended=True)["chain"]
        self._writer.flush(columns, row.row(ended=True))
        self._writer.end_segment_if_full()

    def end(self, *, close: bool) -> None:
        if close:
            self._writer.close()
        else:
            kill(self._writer)


def write_steps(root: Path, steps: list[list[Ev]], **run: Any) -> Path:
    """Write a run of one rank of just these events; values are taken as they are."""
    write_run_json(root, **({"level": "layer", "settings": {}} | run))
    info = {"environment": dict(ENVIRONMENT), "blind_spots": {}, "finished": True}
    writer = Writer(root, 0, info)
    for number, events in enumerate(steps):
        writer.step(number, [(e, digest(e.value, e.twist)) for e in events])
    writer.end(close=False)
    return root


def at(step: int | None, rank: int | None, change: Callable[[list[Ev]], object]) -> Edit:
    """Return the edit that changes one step of one rank; None stands for all of them."""

    def edit(n: int, r: int, events: list[Ev]) -> None:
        if step in (None, n) and rank in (None, r):
            change(events)

    return edit


def twist(name: str, by: object = "twisted") -> Callable[[list[Ev]], None]:
    """Return the change of an event's value."""

    def change(events: list[Ev]) -> None:
        event = find(events, name)
        event.twist = by
        if event.number is not None:
            event.number += 1

    return change


def amend(name: str, **changes: Any) -> Callable[[list[Ev]], None]:
    """Return the change of other fields of an event."""

    def change(events: list[Ev]) -> None:
        events[events.index(find(events, name))] = replace(find(events, name), **changes)

    return change


def rewrite_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def verdict_of(a: Path, b: Path, **options: Any) -> Verdict:
    verdict = compare_runs(Run.open(a), Run.open(b), **options)
    check_groups(verdict)
    return verdict


def check_groups(verdict: Verdict) -> None:
    """Check that each origin is in one group, with its like alone."""
    places = [place for group in verdict.groups for place in group.origins]
    assert sorted(places) == list(range(len(verdict.origins)))
    firsts = [group.origins[0] for group in verdict.groups]
    assert firsts == sorted(firsts)
    for group in verdict.groups:
        own = [verdict.origins[place] for place in group.origins]
        assert group.origins == sorted(group.origins) and len(own) <= group.count <= group.of
        for name in ("step", "phase", "kind", "op", "class_", "component"):
            assert len({getattr(origin, name) for origin in own}) == 1
        assert {origin.rank for origin in own} == {group.rank}
        assert len({(origin.a is None, origin.b is None) for origin in own}) == 1
    if len(verdict.origins) == verdict.num_origins:
        assert all(len(group.origins) == group.count for group in verdict.groups)


def diverged(tmp_path: Path, edit: Edit, **job: Any) -> Verdict:
    a = Job(**job).arm(tmp_path / "a")
    return verdict_of(a, Job(**job, edit=edit).arm(tmp_path / "b"))
