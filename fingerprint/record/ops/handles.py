"""Collectives at the rung layer, where operators are not seen.

A program calls them through the methods of a process group, or through the functions of
`torch.distributed._functional_collectives`, as distributed tensors do. While such a call runs, a
dispatch mode is on that sees the operator below it, as at rung op. What it leaves is recorded once
the program has waited: for the call's handle, or with `wait_tensor`.

What C++ calls by itself does not come by here: the reduction of DistributedDataParallel above all,
whose two ends are the local and the reduced gradients.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from fpdiff.fingerprint.digest.host import look
from fpdiff.fingerprint.record.events.prelude import FIRST
from fpdiff.fingerprint.record.ops.mode import OpMode, OpRecorder
from fpdiff.fingerprint.record.ops.schema import is_of_collectives
from fpdiff.fingerprint.record.wrapping import wrap

_Call = Callable[..., Any]

_METHODS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""Of a process group; versions of torch differ in which of them they have."""

_FUNCTIONS = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_gather_into_tensor_coalesced",
    "all_gather_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)


class HandleWatch:
    """Records collectives from their call to the program's wait."""

    def __init__(self, ops: OpRecorder) -> None:
        """Lead to the recorder of operators, which is shown no others."""
        self._ops = ops
        self._handles: dict[int, list[weakref.ref[torch.Tensor]]] = {}
        self._step = -1
        self._is_launching = False

    def watch(self) -> Callable[[], None]:
        """Show the recorder every collective from now on; return the function that ends it."""
        methods = [("ProcessGroup", name, self._method) for name in _METHODS]
        functions = [("", name, self._function) for name in _FUNCTIONS]
        return wrap(
            {
                "torch.distributed.distributed_c10d": [*methods, ("Work", "wait", self._wait)],
                "torch.distributed._functional_collectives": [
                    *functions,
                    ("", "wait_tensor", self._wait_tensor),
                ],
            }
        )

    # What is put around

    def _method(self, original: _Call) -> _Call:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if not self._wanted():
                return original(*args, **kwargs)
            with self._launch():
                handle = original(*args, **kwargs)
            self._ops.observed(self._launched, handle)
            return handle

        return method

    def _function(self, original: _Call) -> _Call:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if self._is_launching or not self._wanted():  # Some are called by others of them.
                return original(*args, **kwargs)
            with self._launch():
                return original(*args, **kwargs)

        return function

    def _wait(self, original: _Call) -> _Call:
        @functools.wraps(original)
        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            if self._wanted() and (flying := self._handles.pop(id(handle), None)) is not None:
                self._ops.observed(self._landed, [ref() for ref in flying])
            return result

        return wait

    def _wait_tensor(self, original: _Call) -> _Call:
        @functools.wraps(original)
        def wait_tensor(tensor: torch.Tensor) -> Any:
            result = original(tensor)
            if self._wanted():
                self._ops.observed(self._landed, [tensor])
            return result

        return wait_tensor

    @contextmanager
    def _launch(self) -> Iterator[None]:
        self._is_launching = True
        try:
            with _Launches(self._ops):
                yield
        finally:
            self._is_launching = False

    # What is recorded

    def _wanted(self) -> bool:
        # First, and constant to Dynamo: nothing of this is left in compiled code.
        if torch.compiler.is_compiling():
            return False
        recorder = self._ops.recorder
        return recorder.wants_ops() and recorder.follows_thread()

    def _launched(self, handle: Any) -> None:
        """Remember what is going to be written once the program has waited for a handle."""
        flying = self._ops.collectives.take_flying()
        if self._step != self._ops.recorder.step:
            self._step = self._ops.recorder.step
            self._handles.clear()  # What was not waited for in its step is a blind spot.
        if isinstance(handle, distributed.Work):
            self._handles[id(handle)] = flying
        else:  # There is none to wait for: it is done.
            self._landed([ref() for ref in flying])

    def _landed(self, tensors: list[torch.Tensor | None]) -> None:
        """Record what collectives have left in tensors; what is made next has read it."""
        recorder = self._ops.recorder
        scope = recorder.scopes.top()
        for tensor in tensors:
            view = None if tensor is None else look(tensor)
            if tensor is None or view is None or not self._ops.writers.is_in_flight(view):
                continue
            recorder.events.cache.forget(view)  # No version counts what a collective writes.
            seq = self._ops.writers.sources(view).seqs[-1]
            if seq < FIRST:
                recorder.events.producers.put(tensor, view, seq)
                recorder.state.has_received = True
                if scope is not None:
                    scope.reads.append(seq)
                    scope.received.append(seq)
                elif recorder.optimizer.options is not None:
                    recorder.optimizer.received.append(seq)
                elif torch._C._current_graph_task_id() == -1 and not recorder.has_gone_back:
                    recorder.root_outputs.append(seq)  # A loss may be made with it.


class _Launches(OpMode):
    """Shows a recorder the operators that launch collectives."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and record it if it launches a collective."""
        if not is_of_collectives(func):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)
