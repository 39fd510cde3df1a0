"""Gradients as the optimizer sees them, and what it made of them."""

from typing import Any

import torch

from fpdiff.fingerprint.record.quiet import observing
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.state.optimizing import num_stepping


class OptimizerHooks:
    """The bodies of the global optimizer hooks."""

    def __init__(self, recorder: Recorder) -> None:
        """Belong to a recorder."""
        self.recorder = recorder
        self._gradients: dict[int, int] = {}
        self._outer: list[dict[int, int]] = []  # gradients of optimizers that run another

    @observing
    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record the gradients that the step is going to use."""
        recorder = self.recorder
        del self._outer[num_stepping() - 1 :]  # Whose steps have raised.
        if num_stepping() > 1:
            self._outer.append(self._gradients)
        self._gradients = {}
        closes = _has_closure(args, kwargs)
        if not recorder.has_begun():
            if closes:  # Which may run the first module.
                recorder.state.discovery.note_step(optimizer, recorder.step)
                recorder.optimizer.begin(optimizer, works=False)
            return
        if recorder.continues() and not (closes and recorder.boundary_due):
            recorder.state.catch_up(optimizer)
        recorder.state.discovery.note_step(optimizer, recorder.step)
        if recorder.continues():
            # A closure begins a step like any forward, and the optimizer's own work comes after it.
            is_due = not (closes and recorder.boundary_due)
            if is_due:
                recorder.op_events.join_step()
            recorder.optimizer.begin(optimizer, works=is_due)
        if recorder.continues() and not closes:
            with recorder.events.together():
                self._record_gradients(optimizer)
        if recorder.continues() and not (closes and recorder.boundary_due):
            recorder.switches.look("optimizer", "", recorder.step)
            recorder.state.step_settings.record_changed_options(optimizer)

    @observing
    def after(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record the updated parameters and end the step."""
        recorder = self.recorder
        recorder.optimizer.end()
        if not recorder.has_begun():
            return
        if recorder.continues():
            with recorder.events.together():
                if _has_closure(args, kwargs):
                    # The closure computed the gradients inside the step; they are still there.
                    self._record_gradients(optimizer)
                recorder.state.record_updated(optimizer, self._gradients)
        if (
            num_stepping() > 1 and self._outer
        ):  # The step goes on in the optimizer that ran this one.
            self._gradients = self._outer.pop()
        else:
            recorder.optimizer_stepped()

    def _record_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        recorder = self.recorder
        # A reduction or a clip since the last accumulation may have gone past the version
        # counters (C++ reducers write into buckets): digest anew.
        first = recorder.backward_first_seq if recorder.layers else recorder.events.first_seq
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                place = recorder.state.place(optimizer, parameter)
                local = recorder.gradient_seqs.get(id(parameter))
                seq = recorder.events.emit_tensor(
                    place.reduced_gradient,
                    parameter.grad,
                    trust=not recorder.is_distributed(),
                    follow=False,
                    reads=[] if local is None else [local],
                    span=recorder.events.next_seq() - first,
                )
                if seq is not None:
                    self._gradients[id(parameter)] = seq


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) > 1 and args[1] is not None or kwargs.get("closure") is not None
