"""What a recording left, as a test wants to see it: events with their sites, edges as seqs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fpdiff

WHERE = ("phase", "kind", "module", "call", "slot", "microbatch")


@dataclass(frozen=True)
class Event:
    step: int
    microbatch: int
    seq: int
    phase: str
    kind: str
    module: str
    module_class: str
    call: int
    occurrence: int
    slot: str
    op: str | None
    members: str | None
    dtype: str
    shape: tuple[int, ...]
    source: str | None
    digest: bytes
    inputs: tuple[int, ...]
    span: int
    value: float | None
    l2: float | None
    absmax: float | None
    nonfinite: int | None
    kernels: list[str] | None

    @property
    def where(self) -> tuple[str, str, str, int, str, int]:
        """Return (phase, kind, module, call, slot, microbatch)."""
        return (self.phase, self.kind, self.module, self.call, self.slot, self.microbatch)

    @property
    def reads(self) -> set[int]:
        """Return the seqs of all events that this one read."""
        return set(self.inputs) | set(range(self.seq - self.span, self.seq))


class Events(list[Event]):
    """Events in program order."""

    def pick(self, **match: Any) -> "Events":
        """Return the events whose attributes are equal to these."""
        return Events(e for e in self if all(getattr(e, k) == v for k, v in match.items()))

    def one(self, **match: Any) -> Event:
        """Return the only such event."""
        found = self.pick(**match)
        assert len(found) == 1, f"{match}: {[e.where for e in found]}"
        return found[0]

    def column(self, name: str) -> list[Any]:
        """Return one attribute of each."""
        return [getattr(event, name) for event in self]

    def names(self, *attributes: str) -> list[Any]:
        """Return some attributes of each."""
        return [tuple(getattr(event, name) for name in attributes) for event in self]

    def at(self, seq: int) -> Event:
        """Return the event with a seq."""
        return self.one(seq=seq)

    def read_by(self, event: Event) -> "Events":
        """Return the events that one read."""
        return Events(e for e in self if e.seq in event.reads)

    def ancestors(self, event: Event) -> "Events":
        """Return everything that an event depends on."""
        todo, seen = [event.seq], set[int]()
        by_seq = {e.seq: e for e in self}
        while todo:
            for seq in by_seq[todo.pop()].reads - seen:
                seen.add(seq)
                todo.append(seq)
        return Events(e for e in self if e.seq in seen)


def read(path: Path, rank: int = 0) -> Events:
    """Return all events of a rank."""
    record = fpdiff.open_run(path).ranks[rank]
    sites = {row.pop("site"): row for row in record.sites().to_pylist()}
    events = Events()
    for batch in record.event_batches():
        for row in batch.to_pylist():
            site = dict(sites[row.pop("site")])
            site["shape"] = tuple(site["shape"])
            row["digest"] = row["digest"].bytes
            row["inputs"] = tuple(row["seq"] - offset for offset in row["inputs"])
            events.append(Event(**row, **site))
    return events


def hide_the_past() -> None:
    """Hide what earlier tests left from the recorder's search for optimizers and modules."""
    gc.collect()
    gc.freeze()  # The search does not meet what is frozen, and the next collection is quick.


@contextmanager
def recorded(path: Path, **options: Any) -> Iterator[Events]:
    """Record a block; the list is filled when the block has ended, and its edges are checked."""
    events = Events()
    with fpdiff.record(path, **options):
        yield events
    events.extend(read(path))
    check_edges(events)


NEED_INPUTS = ("output", "gradient", "local_gradient", "reduced_gradient", "loss", "rewrite")


def check_edges(events: Events) -> None:
    """Check that every edge leads to an earlier event of the step, and that none is missing."""
    first: dict[int, int] = {}
    for event in events:
        first.setdefault(event.step, event.seq)
        assert all(first[event.step] <= seq < event.seq for seq in event.reads), event
        assert event.reads or event.kind not in NEED_INPUTS, event


def info(path: Path, rank: int = 0) -> dict[str, Any]:
    """Return what a rank says of itself."""
    return fpdiff.open_run(path).ranks[rank].info


def train(
    model: nn.Module,
    *,
    steps: int = 2,
    microbatches: int = 1,
    optimizer: torch.optim.Optimizer | None = None,
    each: Callable[[int], object] = lambda step: None,
    shape: tuple[int, ...] = (3, 4),
) -> torch.optim.Optimizer:
    """Train a model on fixed batches; the loss is the mean square of what it returns."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(7)
    for step in range(steps):
        each(step)
        optimizer.zero_grad()
        for _ in range(microbatches):
            batch = torch.rand(shape, generator=generator)
            model(batch).square().mean().backward()
        optimizer.step()
    return optimizer


def closure_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> Callable[[], float]:
    """Return what an optimizer's step may call to compute the loss and the gradients."""

    def closure() -> float:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        return loss.item()

    return closure


def mlp(seed: int = 0) -> nn.Sequential:
    """Return a small model, the same for the same seed; draws from no shared generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
