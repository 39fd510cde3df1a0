"""Step digests: which step of a rank differs first, and what it does later.

Only the step rows are read, a few hundred bytes a step whatever the number of events, unless a
lens hides events; then each step is compared event by event.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned, Arm, Keys, align
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.store.run import RankRecord

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StepDifference:
    """What differs in a step of a rank."""

    any: bool
    loss: bool
    parameters: bool
    metrics: bool
    generator: bool


class RankTier:
    """The steps that both runs have of one rank."""

    def __init__(
        self, a: RankRecord, b: RankRecord, *, lens: Lens, keys: Keys, steps: Ranges
    ) -> None:
        """Remember what to compare.

        Args:
            a: the rank in run A.
            b: the rank in run B.
            lens: which events are compared.
            keys: numbers of site keys.
            steps: compare only these, all if empty.
        """
        self.a = a
        self.b = b
        self._lens = lens
        self._keys = keys
        self._window = steps

    @cached_property
    def rows(self) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
        """Return the step rows of A and of B, by step."""
        return _rows(self.a), _rows(self.b)

    @cached_property
    def steps(self) -> list[int]:
        """Return the steps of both, in order."""
        a, b = self.rows
        both = sorted(a.keys() & b.keys())
        if not self._window:
            return both
        return [s for s in both if any(first <= s < end for first, end in self._window)]

    @cached_property
    def num_events(self) -> int:
        """Return how many of A's events the comparison covers."""
        return sum(self.rows[0][step]["events"] for step in self.steps)

    @cached_property
    def differences(self) -> dict[int, StepDifference]:
        """Return what differs, for each step in which something does."""
        found = {step: self._difference(step) for step in self.steps}
        return {step: d for step, d in found.items() if d.any or d.metrics or d.generator}

    @cached_property
    def first(self) -> int | None:
        """Return the first step in which a tensor or the structure differs."""
        return next((step for step, d in self.differences.items() if d.any), None)

    def first_with(self, what: str) -> int | None:
        """Return the first step in which an attribute of StepDifference is set."""
        return next((s for s, d in self.differences.items() if getattr(d, what)), None)

    def generators_drawn_from(self) -> set[str]:
        """Return the generators whose states change between the first and the last step."""
        used = set()
        for record in (self.a, self.b):
            first, last = (_generator_states(record, s) for s in (self.steps[0], self.steps[-1]))
            used |= {name for name in first if first[name] != last.get(name)}
        return used

    def generators_that_differ(self, step: int) -> list[str]:
        """Return the generators whose states at the start of a step differ."""
        a, b = _generator_states(self.a, step), _generator_states(self.b, step)
        return [name for name in a if name in b and a[name] != b[name]]

    def aligned(self, step: int) -> Aligned:
        """Read and pair a step's events.

        Raises:
            StoreError: a file is damaged.
        """
        a = Arm(self.a, step, self._keys, self._lens)
        return align(a, Arm(self.b, step, self._keys, self._lens))

    def _difference(self, step: int) -> StepDifference:
        if not self._lens.is_clear:
            return self._event_difference(step)
        a, b = (rows[step] for rows in self.rows)

        def differs(*columns: str) -> bool:
            return any(a[c] != b[c] for c in columns)

        def group(name: str) -> bool:
            pairs = [(a[f"{c}_{name}"], b[f"{c}_{name}"]) for c in ("content", "structure")]
            return any(x != y for x, y in pairs)

        return StepDifference(
            any=differs("content", "structure"),
            loss=group("loss"),
            parameters=group("parameters"),
            metrics=group("metrics"),
            generator=group("generator"),
        )

    def _event_difference(self, step: int) -> StepDifference:
        aligned = self.aligned(step)
        kinds = {aligned.site(int(row))["kind"] for row in np.flatnonzero(~aligned.equal)}
        return StepDifference(
            any=bool(kinds - {"generator", "metric"}),
            loss="loss" in kinds,
            parameters="parameter" in kinds,
            metrics="metric" in kinds,
            generator="generator" in kinds,
        )


def _rows(record: RankRecord) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in record.steps().to_pylist()}


def _generator_states(record: RankRecord, step: int) -> dict[str, Any]:
    names = {
        site["site"]: site["slot"]
        for site in record.sites().to_pylist()
        if site["kind"] == "generator" and site["phase"] == "init"
    }
    table = record.events(step).select(["site", "digest"])
    return {names[e["site"]]: e["digest"] for e in table.to_pylist() if e["site"] in names}
