"""What all hooks share: which step is open, and what of it later events refer to.

A recorder is *awake* until it decides that this process is not to be recorded, or something
fails. Nothing is created on disk before the first module runs.
"""

import os
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fpdiff.fingerprint.record.events.lines import Lines
from fpdiff.fingerprint.record.events.opevents import OpEvents
from fpdiff.fingerprint.record.events.stepevents import StepEvents
from fpdiff.fingerprint.record.generators import torch_state
from fpdiff.fingerprint.record.job import environment, process, runfolder
from fpdiff.fingerprint.record.job.switches import TOO_MANY, Switches
from fpdiff.fingerprint.record.modules.names import Names
from fpdiff.fingerprint.record.modules.nodes import Nodes
from fpdiff.fingerprint.record.modules.scopes import Scope, ScopeStack
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.record.state.optimizing import RunningOptimizer
from fpdiff.fingerprint.record.state.stepstate import StateRecorder
from fpdiff.fingerprint.record.threads import Threads
from fpdiff.fingerprint.record.warning import warn
from fpdiff.store.errors import StoreError
from fpdiff.store.writer import RankWriter


class Recorder:
    """Records this process, as one rank of a run."""

    def __init__(self, settings: Settings) -> None:
        """Get ready; see `arming.arm` for the hooks."""
        self.settings = settings
        self.kernels = settings.level == "kernel"
        self.ops = settings.ops
        self.layers = self.ops or settings.level == "layer"
        self.collectives = self.ops or (self.layers and settings.collectives)
        self.awake = True
        self.is_observing = False  # a hook is at work: the ops that run are its own
        self.names = Names()
        self.threads = Threads()
        self.scopes = ScopeStack()
        self.nodes = Nodes()
        self.lines = Lines(self.nodes)
        self.events = StepEvents(settings)
        self.op_events = OpEvents(self)
        self.blind_spots = self.events.blind_spots
        self.state = StateRecorder(self)
        self.step = settings.first_step
        self.backward_first_seq = 0
        self.has_gone_back = False  # since the last forward: what runs now belongs to none of them
        self.calls: Counter[tuple[str, str, int]] = Counter()  # by (phase, module, microbatch)
        self.boundary_due = False
        self.generator_state = b""
        self.generator_seq = -1  # of the last event that said what a module drew from
        self.rank = 0
        self.optimizer = RunningOptimizer(self.state.step_settings)
        self.switches = Switches()
        # Seqs of the open step's events, for the edges of later ones:
        self.root_outputs: list[int] = []
        self.consumers: dict[int, list[Scope]] = {}  # of an output, the calls it was given to
        self.passed_on: dict[int, tuple[int, Scope]] = {}  # of an output, who returned it as is
        self.calls_read: dict[tuple[str, int], list[int]] = {}  # by (module, microbatch)
        self.gradient_seqs: dict[int, int] = {}  # by id of the parameter
        self._explicit_steps = False
        self._has_stepped = False
        self._environment: dict[str, Any] = {}
        self._open = False
        self._in_window = False
        self._writer: RankWriter | None = None
        self._stopped = ""

    # Lifecycle

    def touch(self) -> bool:
        """Open the step that an event belongs to; return whether it is to be recorded.

        Every hook begins with this.
        """
        if self._writer is None:
            return False
        if self.boundary_due:
            self._open_step(self.step + 1)
        elif not self._open:
            self._open_step(self.step)
        return self._in_window and self.awake

    def continues(self) -> bool:
        """Return whether an event that ends a step (optimizer, metric) is to be recorded."""
        return self._open and self._in_window and self.awake

    def wants_ops(self) -> bool:
        """Return whether the ops that run now are to be recorded."""
        if self._writer is None or self.is_observing or not self.awake:
            return False
        if self.between_steps:
            return self.settings.wants_step(self.step + self.boundary_due)
        return self._in_window

    @property
    def between_steps(self) -> bool:
        """Whether it is not known yet to which step what runs now belongs."""
        return (self.boundary_due or not self._open) and self.optimizer.options is None

    def has_begun(self) -> bool:
        """Return whether a module has run, and this process is a rank of the run."""
        return self._writer is not None

    def is_distributed(self) -> bool:
        """Return whether a process group exists, so that gradients may be reduced."""
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    def begin(self) -> bool:
        """Begin to record this process if it has not begun; called when a module runs.

        Returns:
            Whether it records; False for workers of DataLoaders and pools, and for ranks outside
            the window.
        """
        if self._writer is not None:
            return True
        if process.is_helper():
            self.awake = False
            return False
        if not self.threads.take():
            return False  # Another thread begins at this very moment.
        self.rank = process.rank()
        if not self.settings.wants_rank(self.rank):
            self.awake = False
            return False
        try:
            root = runfolder.join_attempt(Path(self.settings.out))
            self._writer = RankWriter(root, self.rank)
        except StoreError as taken:
            self.awake = False
            warn(f"this process (pid {os.getpid()}) is left out: {taken}", stacklevel=1)
            return False
        self.events.begin(self._writer, self.lines)
        self._environment = environment.describe()
        self._write_info()
        process.at_end(self.close)
        return True

    def follows_thread(self, *, is_told: bool = True) -> bool:
        """Return whether what runs in this thread is recorded; if not, it is a blind spot.

        Args:
            is_told: count it.
        """
        if self.threads.are_followed():
            return True
        self.blind_spots["thread not followed"] += is_told
        return False

    def _open_step(self, number: int) -> None:
        self._close_step(ended=True)
        self.step = number
        self.boundary_due = False
        self._open = True
        self._in_window = self.settings.wants_step(number)
        self.events.open_step(number)
        self.calls.clear()
        self.backward_first_seq = self.events.first_seq
        self.has_gone_back = False
        self.root_outputs.clear()
        self.consumers.clear()
        self.calls_read.clear()
        self.gradient_seqs.clear()
        self.passed_on.clear()
        self.generator_seq = -1
        if self.collectives:
            self.op_events.open_step(in_window=self._in_window)
            self.nodes.next_step()
        if self._in_window:
            self.state.record_tensors()
            self.generator_state = torch_state()
            if self.kernels:
                self.events.device_kernels.begin()

    def _close_step(self, *, ended: bool) -> None:
        if self._open:
            if lost := self.events.writers.num_in_flight():
                if self.ops:
                    self.blind_spots["collective output that no op read in its step"] += lost
                else:
                    reason = "collective output that was not waited for in its step"
                    self.blind_spots[reason] += lost
            if self._in_window:
                self.events.close_step(ended=ended)
            self._open = False

    def close(self) -> None:
        """Put everything on disk and say that this rank has finished; safe to call twice."""
        if self._writer is None or not self.awake:
            return
        with torch._C.DisableTorchFunction():
            try:
                # An exception may have cut it short: only an optimizer's step says it is whole.
                self._close_step(ended=self.boundary_due)
                self.events.close()
                self._write_info(finished=True)
            except Exception as error:  # noqa: BLE001  # The program has ended well.
                self.fail(error)
        self.awake = False

    def fail(self, error: BaseException, *, by_signal: bool = False) -> None:
        """Stop recording after an error, with one warning; the program goes on.

        Args:
            error: what has cut the recording short.
            by_signal: a signal's handler has raised it: it is no error of ours.
        """
        self.awake = False
        self.events.device_kernels.end()
        self._stopped = f"recording stopped in step {self.step}: "
        if by_signal:
            self._stopped += f"a signal cut it short ({type(error).__name__})"
        else:
            self._stopped += f"{type(error).__name__}: {error}"
            if not isinstance(error, OSError):
                self._stopped += f" ({_where(error)})"
        self.blind_spots["recording stopped"] += 1
        if self._writer is not None:
            self._writer.abandon()
            try:
                self._write_info()
            except Exception as second:  # noqa: BLE001  # Whatever it is, the program goes on.
                self._stopped += f"; the rank's file could not be updated: {second}"
        warn(f"{self._stopped}; the program goes on unrecorded")

    def _write_info(self, *, finished: bool = False) -> None:
        assert self._writer is not None
        if self.switches.num_lost:
            self.blind_spots[TOO_MANY] = self.switches.num_lost
        info: dict[str, Any] = {
            "rank": self.rank,
            "environment": self._environment,
            "switched": self.switches.notes(self._environment),
            "settings": self.settings.to_dict(),
            "blind_spots": dict(self.blind_spots),
            "finished": finished,
        }
        if self._stopped:
            info["stopped"] = self._stopped
        self._writer.write_info(info)

    # Steps

    def begin_explicit_step(self, number: int) -> bool:
        """End the open step so that the next event opens step `number`.

        Returns:
            False if the number does not grow.
        """
        self._explicit_steps = True
        if self._writer is not None:
            if number < self.step or (number == self.step and self.boundary_due):
                return False
            if number == self.step and self._open:
                return True
            self._close_step(ended=True)
        self.step = number
        self.boundary_due = False
        return True

    def optimizer_stepped(self) -> None:
        """Put the step on disk, which ends unless it is another optimizer's turn."""
        if self._open and self._in_window:
            self.events.flush(close=True)
        if not self._has_stepped:
            # By now the program has set its threads and process groups up, and not yet torn down.
            self._has_stepped = True
            self._environment = environment.describe()
            self._write_info()
        elif self.switches.has_news:
            self._write_info()
        self.boundary_due = not self._explicit_steps

    def is_untrained(self) -> bool:
        """Return whether no backward pass has been seen yet."""
        is_first = self.step == self.settings.first_step
        return is_first and self.backward_first_seq <= self.events.first_seq

    def microbatch_outside(self) -> int:
        """Return the microbatch of what runs outside of modules and backward passes.

        What comes after a backward pass (clipping, the optimizer) would belong to another one if
        there were more of them: it belongs to none, and counts as the first's.
        """
        alone = self.between_steps or self.has_gone_back or self.optimizer.options is not None
        return 0 if alone else self.events.microbatch


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
