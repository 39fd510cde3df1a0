"""The steps of a rank that differ, and in what: arrays, since there may be millions of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect.arm import Flags, Ints

EVALUATIONS = ("", "A", "B")


@dataclass(frozen=True, kw_only=True)
class StepDifference:
    """What differs in a step of a rank.

    Attributes:
        any: a tensor or the structure, in a way that counts.
        unsure: whether `any` counts can only be told from the events: both runs evaluated the
            model, and nothing outside of it differs.
        evaluation: "A" or "B" if only that run evaluated the model, else "".
        loss: the loss; parameters, metrics (logged numbers) and generator (at step start) alike.
        parameters_for_sure: not only in order or number.
        backward: something computed in the backward.
    """

    any: bool
    unsure: bool = False
    evaluation: str = ""
    loss: bool
    parameters: bool
    parameters_for_sure: bool
    metrics: bool
    generator: bool
    backward: bool


class StepDifferences(Mapping[int, StepDifference]):
    """The steps that differ, in order."""

    def __init__(self, steps: Ints, flags: dict[str, Any]) -> None:
        """Hold arrays over the steps that differ.

        Args:
            steps: their numbers, rising.
            flags: for each attribute of StepDifference whether it is set; for `evaluation` the
                place in EVALUATIONS.
        """
        self.steps = steps
        self._flags = flags

    @classmethod
    def of(cls, found: Mapping[int, StepDifference]) -> "StepDifferences":
        """Return differences of which each is at hand, in the order of the steps."""
        flags: dict[str, Any] = {
            field.name: np.array([getattr(d, field.name) for d in found.values()], bool)
            for field in fields(StepDifference)
        }
        evaluations = [EVALUATIONS.index(d.evaluation) for d in found.values()]
        flags["evaluation"] = np.array(evaluations, np.int8)
        return cls(np.array(list(found), np.int64), flags)

    def __len__(self) -> int:
        """Return how many steps differ."""
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the steps that differ."""
        return iter(self.steps.tolist())

    def __getitem__(self, step: int) -> StepDifference:
        """Return what differs in a step."""
        at = int(np.searchsorted(self.steps, step))
        if at == len(self.steps) or self.steps[at] != step:
            raise KeyError(step)
        values = {name: flag[at].item() for name, flag in self._flags.items()}
        return StepDifference(**values | {"evaluation": EVALUATIONS[values["evaluation"]]})

    def having(self, what: str) -> Ints:
        """Return the steps in which an attribute of StepDifference is set."""
        found: Ints = self.steps[self._flags[what].astype(bool)]
        return found

    def evaluations(self, label: str) -> Flags:
        """Return for each step whether `evaluation` is this label."""
        found: Flags = self._flags["evaluation"] == EVALUATIONS.index(label)
        return found

    def ending(self, step: int, difference: StepDifference | None) -> "StepDifferences":
        """Return the same with another end: what differs in the last step, or None if nothing."""
        end = StepDifferences.of({} if difference is None else {step: difference})
        kept = self.steps != step
        flags = {n: np.concatenate([f[kept], end._flags[n]]) for n, f in self._flags.items()}
        return StepDifferences(np.concatenate([self.steps[kept], end.steps]), flags)
