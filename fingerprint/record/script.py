"""What a script may call: step, log and mark."""

import warnings

import torch

from fpdiff.fingerprint.digest.host import digest_bytes, look, scalar
from fpdiff.fingerprint.record.quiet import observing
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.sitetable import Point


class ScriptCalls:
    """The bodies of `fpdiff.step`, `fpdiff.log` and `fpdiff.mark`."""

    def __init__(self, recorder: Recorder) -> None:
        """Belong to a recorder."""
        self.recorder = recorder

    @observing
    def step(self, number: int) -> None:
        """Begin step `number`."""
        recorder = self.recorder
        if not recorder.begin_explicit_step(int(number)):
            warnings.warn(
                f"fpdiff: step({number}) after step {recorder.step} is ignored: numbers must grow",
                stacklevel=4,
            )

    @observing
    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Record a metric of the open step; it does not open the next."""
        recorder = self.recorder
        if not recorder.has_begun() or not recorder.continues():
            return
        number = scalar(value) if isinstance(value, torch.Tensor) else float(value)
        if number is None:
            warnings.warn(
                f"fpdiff: log({name!r}) is ignored: not a single real number", stacklevel=4
            )
            return
        point = Point("other", "metric", "", "", 0, name)
        recorder.emit(point, digest_bytes(number.hex().encode()), value=number)

    @observing
    def mark(self, name: str, tensor: torch.Tensor) -> None:
        """Record the digest of a tensor."""
        recorder = self.recorder
        if not recorder.has_begun() or not recorder.continues():
            return
        view = look(tensor)
        seq, exact = recorder.producers.find(tensor, view)
        reads = [seq] if seq is not None else []
        span = 0 if exact else recorder.num_step_events()
        point = Point("other", "mark", "", "", 0, name)
        recorder.emit_tensor(point, tensor, view, reads=reads, span=span)
