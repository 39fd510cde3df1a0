"""What a script may call: step, log and mark."""

import operator
from functools import partial

import torch

from fpdiff.fingerprint.digest.host import is_number, look
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.quiet import observing
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.warning import warn


class ScriptCalls:
    """The bodies of `fpdiff.step`, `fpdiff.log` and `fpdiff.mark`."""

    def __init__(self, recorder: Recorder) -> None:
        """Belong to a recorder."""
        self.recorder = recorder

    @partial(observing, is_told=True)
    def step(self, number: int) -> None:
        """Begin step `number`."""
        recorder = self.recorder
        try:
            grows = recorder.begin_explicit_step(operator.index(number))
        except TypeError:
            warn(f"step({number!r}) is ignored: not an integer", stacklevel=4)
            return
        if not grows:
            warn(
                f"step({number}) after step {recorder.step} is ignored: numbers must grow",
                stacklevel=4,
            )

    @partial(observing, is_told=True)
    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Record a metric of the open step; it does not open the next."""
        recorder = self.recorder
        if not self._is_open("log"):
            return
        number = _number(value)
        if number is None:
            warn(f"log({name!r}) is ignored: not a single real number", stacklevel=4)
            return
        recorder.events.emit_number(Point("other", "metric", "", "", 0, str(name)), number)

    @partial(observing, is_told=True)
    def mark(self, name: str, tensor: torch.Tensor) -> None:
        """Record the digest of a tensor."""
        recorder = self.recorder
        if not self._is_open("mark"):
            return
        if not isinstance(tensor, torch.Tensor):
            warn(f"mark({name!r}) is ignored: not a tensor", stacklevel=4)
            return
        view = look(tensor)
        seq, exact = recorder.events.producer_of(tensor, view)
        reads = [seq] if seq is not None else []
        span = 0 if exact else recorder.events.num_step_events()
        point = Point("other", "mark", "", "", 0, str(name))
        recorder.events.emit_tensor(point, tensor, view, reads=reads, span=span)

    def _is_open(self, call: str) -> bool:
        """Return whether the step that a call belongs to is recorded.

        After an optimizer's step that is the step that has just ended; where the script numbers
        its steps, it is the one that it has begun.
        """
        recorder = self.recorder
        if not recorder.has_begun():
            recorder.blind_spots[f"{call}() before the first module ran"] += 1
            return False
        return recorder.continues() or (not recorder.boundary_due and recorder.touch())


def _number(value: float | torch.Tensor) -> float | torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if is_number(value) else None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
