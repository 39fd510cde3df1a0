"""What a library runs only to learn the shapes of its results, and throws away.

A pipeline of `torch.distributed.pipelining` runs each stage forward and backward once, before its
first batch, on tensors that nobody has filled. What comes out is garbage, other garbage in each
run, and nobody reads it: it is no part of what the program computes, and not recorded.
"""

import functools
from collections.abc import Callable
from typing import Any

from fpdiff.fingerprint.record.quiet import observing
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.wrapping import wrap


def pause_in(recorder: Recorder) -> Callable[[], None]:
    """Keep rehearsals out of the record from now on; return the function that ends it."""
    pause = Rehearsals(recorder).paused
    names = ("_forward_metadata_inference", "_backward_metadata_inference")
    stage = "torch.distributed.pipelining.stage"
    return wrap({stage: [("PipelineStage", name, pause) for name in names]})


class Rehearsals:
    """Lets a recorder sleep while one runs."""

    def __init__(self, recorder: Recorder) -> None:
        """Belong to a recorder."""
        self.recorder = recorder

    @observing
    def begin(self) -> None:
        """Begin to record this process: its first module runs now, and messages come next."""
        if self.recorder.begin():
            self.recorder.blind_spots["rehearsal of a pipeline stage"] += 1

    def paused(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that is not recorded."""

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            self.begin()
            if not recorder.awake:
                return original(*args, **kwargs)
            recorder.awake = False
            try:
                return original(*args, **kwargs)
            finally:
                recorder.awake = True

        return run
