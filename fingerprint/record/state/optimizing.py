"""Which optimizer is at work, at rung op: what runs is then its own.

An optimizer that is given a closure runs the program's forward and backward in the middle of its
step, and goes on when they have ended.
"""

import sys
import weakref
from types import FrameType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.state.stepsettings import StepSettings

_STEP = torch.optim.Optimizer.profile_hook_step(lambda *_: None).__code__
"""The code that every optimizer's step runs in."""


class RunningOptimizer:
    """The optimizer whose step is running.

    Attributes:
        options: seqs of its options in this step; None while what runs is not its own.
        received: seqs of what its collectives left, where ops are not recorded.
    """

    def __init__(self, settings: "StepSettings") -> None:
        """Start with none."""
        self.options: list[int] | None = None
        self.received: list[int] = []
        self._settings = settings
        self._stepping: weakref.ref[torch.optim.Optimizer] | None = None
        self._outer: list[tuple[weakref.ref[torch.optim.Optimizer] | None, list[int]]] = []

    def begin(self, optimizer: torch.optim.Optimizer, *, works: bool) -> None:
        """Begin a step; `works` says whether what runs now is the optimizer's."""
        del self._outer[num_stepping() - 1 :]  # Whose steps have raised.
        if num_stepping() > 1:
            self._outer.append((self._stepping, self.received))
        self._stepping = weakref.ref(optimizer)
        self.received = []
        if works:
            self.options = self._settings.options_of(optimizer)

    def interrupt(self) -> None:
        """A module runs: in the step's closure, or after a step that raised."""
        self.options = None
        if self._stepping is not None and not num_stepping():
            self._stepping = None

    def resume(self) -> None:
        """A backward pass has ended: if it was the closure's, the optimizer goes on."""
        if self._stepping is not None and (optimizer := self._stepping()) is not None:
            self.options = self._settings.options_of(optimizer)

    def end(self) -> None:
        """End the step; the optimizer that ran this one goes on."""
        self.options = self._stepping = None
        if num_stepping() > 1 and self._outer:
            self._stepping, received = self._outer.pop()
            self.received = received + self.received
            self.resume()


def num_stepping() -> int:
    """Return how many optimizers' steps are running, one within the other."""
    number = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        number += frame.f_code is _STEP
        frame = frame.f_back
    return number
