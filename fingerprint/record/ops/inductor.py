"""Code that inductor has compiled.

Most of its kernels are its own and run past the dispatcher; of those that it borrows from torch it
is not known what they read. So each graph is one opaque operator: at rung op its tensors are read,
and what it returns and writes is recorded. It may be a part of an optimizer's step that has been
compiled whole, in which no hook fires: it then begins and ends such a step, at every rung.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fpdiff.fingerprint.digest.host import look
from fpdiff.fingerprint.record.events.prelude import place_of
from fpdiff.fingerprint.record.generators import generator_of
from fpdiff.fingerprint.record.ops.call import Call
from fpdiff.fingerprint.record.ops.mode import OpRecorder
from fpdiff.fingerprint.record.ops.schema import OpSchema
from fpdiff.fingerprint.record.ops.values import Argument, results
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.state.optimizer import OptimizerHooks
from fpdiff.fingerprint.record.state.optimizing import num_stepping
from fpdiff.fingerprint.record.wrapping import wrap

_GRAPH = OpSchema("inductor.graph")


@dataclass(frozen=True, slots=True)
class _Running:
    """A graph that runs: its call, and the state of the generator that it may draw from."""

    call: Call
    device: torch.device
    generator: tuple[str, object, bytes]


class GraphRecorder:
    """Turns calls of compiled graphs into events, and into steps of the optimizers they are of."""

    def __init__(self, ops: OpRecorder, optimizers: OptimizerHooks) -> None:
        """Record beside operators and optimizers."""
        self._ops = ops
        self._recorder = ops.recorder
        self._optimizers = optimizers

    def watch(self) -> Callable[[], None]:
        """Show a recorder every call of a graph from now on; return the function that ends it."""
        place = ("CompiledFxGraph", "__call__", self._around)
        return wrap({"torch._inductor.output_code": [place]})

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method that runs a graph, recorded."""

        @functools.wraps(original)
        def run(graph: Any, inputs: Sequence[Any]) -> Any:
            recorder = self._recorder
            if not (recorder.has_begun() and recorder.awake and recorder.follows_thread()):
                return original(graph, inputs)
            recorder.blind_spots["compiled code: its operators and kernels"] += 1
            written = self._ops.observed(_written_by, graph, inputs) or {}
            stepping = self._ops.observed(_stepping_in, recorder, written.values()) or ()
            for optimizer in stepping:
                self._optimizers.before(optimizer, (), {})
            result = self._run(original, graph, inputs, written)
            for optimizer in stepping:
                self._optimizers.after(optimizer, (), {})
            return result

        return run

    def _run(
        self,
        original: Callable[..., Any],
        graph: Any,
        inputs: Sequence[Any],
        written: Mapping[int, torch.Tensor],
    ) -> Any:
        """Run a graph; the operators that it runs are no events."""
        recorder = self._recorder
        running: _Running | None = None
        if recorder.ops and recorder.wants_ops():
            running = self._ops.observed(self._before, inputs, written)
        outer, recorder.is_observing = recorder.is_observing, True
        try:
            result = original(graph, inputs)  # Which empties the list, to free memory early.
        finally:
            recorder.is_observing = outer
        if running is not None:
            self._ops.observed(self._after, running, result)
        return result

    def _before(
        self, inputs: Sequence[Any], written: Mapping[int, torch.Tensor]
    ) -> _Running | None:
        ops = self._ops
        slots = [(f"arg.{index}", value) for index, value in enumerate(inputs)]
        tensors: list[Argument] = [
            (slot, slot, None, value) for slot, value in slots if isinstance(value, torch.Tensor)
        ]
        point, microbatch = ops.point(_GRAPH, tensors)
        if point is None:
            self._recorder.blind_spots["op of a module outside the window"] += 1
            for tensor in written.values():
                if (view := look(tensor)) is not None:
                    ops.writers.drop(view)
            return None
        call = Call(_GRAPH, point, microbatch, ops.op_events.count(place_of(point, microbatch)))
        self._recorder.lines.note(point, call.occurrence)
        for _, slot, _, tensor in tensors:
            ops.read(call, slot, None, tensor)
        if sizes := [(slot, value) for slot, value in slots if isinstance(value, (int, float))]:
            ops.arguments(call, sizes)
        call.written = [(f"arg.{index}", None, tensor) for index, tensor in written.items()]
        device = tensors[0][3].device if tensors else torch.device("cpu")
        return _Running(call, device, generator_of(None, device))

    def _after(self, running: _Running, result: Any) -> None:
        ops, call = self._ops, running.call
        if generator_of(None, running.device) != running.generator:  # So it has drawn.
            ops.drawn(call, *running.generator)
        for slot, index, tensor in call.written:
            ops.made(call, "written", slot, index, tensor)
        several = tuple(result) if isinstance(result, list) else result
        for _, slot, value in results(several, _GRAPH):
            if isinstance(value, torch.Tensor):
                ops.made(call, "result", slot, None, value)


def _written_by(graph: Any, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the inputs that a graph writes, by their numbers."""
    return {index: inputs[index] for index in sorted(graph.mutated_input_idxs)}


def _stepping_in(
    recorder: Recorder, written: Iterable[torch.Tensor]
) -> list[torch.optim.Optimizer]:
    """Return the optimizers whose parameters a graph writes while nothing else is known to run."""
    inside = recorder.scopes.top() is not None or torch._C._current_graph_task_id() != -1
    if inside or num_stepping():
        return []
    return recorder.state.discovery.owners(list(written), recorder.names)
