"""Kernels that Triton launches: what each was given, and what it wrote.

A launch does not pass torch's dispatcher, so what it writes would be nobody's. A kernel's
parameters do not say what it reads and what it writes, so every tensor is taken as read, and one
whose bytes have changed as written; from then on that parameter of the kernel counts as written
even where the bytes come out as they were. Memory that nobody has written is not read: it is passed
to be filled. What a kernel writes outside of the tensors that it was given is not seen.

A kernel inside an operator that the dispatcher shows (a custom operator) is recorded as well, and
the operator then reads what its kernels wrote. The other work inside the operator is not seen,
nor what it allocates: a tensor that a kernel there has changed may have held nothing before.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fpdiff.fingerprint.catalogue import UNSEEN_LAUNCH
from fpdiff.fingerprint.digest.host import PlainView, look
from fpdiff.fingerprint.record.events.prelude import FIRST, place_of
from fpdiff.fingerprint.record.ops.call import Call
from fpdiff.fingerprint.record.ops.mode import OpRecorder
from fpdiff.fingerprint.record.ops.schema import OpSchema
from fpdiff.fingerprint.record.ops.values import Argument

_NO_ARGUMENTS = frozenset({"grid", "warmup"})


@dataclass(frozen=True)
class _Kernel:
    """What is known of a kernel; `written` are the parameters that it was seen to write."""

    schema: OpSchema
    written: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Operand:
    """A tensor given to a kernel.

    Attributes:
        slot: the parameters that it was given as.
        tensor: the tensor.
        before: its digest before the launch, None if it cannot be read.
        is_unknown: an operator that the launch is in has made it unseen.
    """

    slot: str
    tensor: torch.Tensor
    before: bytes | None = None
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch, between what it reads and what it writes; `around` is the operator it is in."""

    kernel: _Kernel
    call: Call
    operands: list[_Operand]
    around: Call | None


class KernelRecorder:
    """Turns launches into events; below the rung kernel it counts them."""

    def __init__(self, ops: OpRecorder) -> None:
        """Record beside operators."""
        self._ops = ops
        self._recorder = ops.recorder
        self._kernels: dict[str, _Kernel] = {}
        self._before_trials: dict[object, bytes | None] = {}

    def launch(
        self,
        run: Callable[..., Any],
        kernel: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a kernel, and record it."""
        if kwargs.get("warmup") or not self._wants():
            return run(kernel, *args, **kwargs)
        launch: _Launch | None = self._ops.observed(self._before, kernel, args, kwargs)
        result = self._hidden(run, kernel, args, kwargs)
        if launch is not None:
            self._ops.observed(self._after, launch)
        return result

    def tune(
        self,
        trial: Callable[..., Any],
        tuner: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Let an autotuner try a configuration, as often as it takes: that is no part of a step."""
        if not self._wants():
            return trial(tuner, *args, **kwargs)
        self._ops.observed(self._before_trial, args, kwargs)
        return self._hidden(trial, tuner, args, kwargs)

    # Around a launch

    def _wants(self) -> bool:
        recorder = self._recorder
        return (
            not torch.compiler.is_compiling() and recorder.wants_ops() and recorder.follows_thread()
        )

    def _hidden(
        self,
        call: Callable[..., Any],
        first: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a function; the ops that it runs (the interpreter copies, say) are no events."""
        recorder = self._recorder
        outer, recorder.is_observing = recorder.is_observing, True
        try:
            return call(first, *args, **kwargs)
        finally:
            recorder.is_observing = outer

    def _before(
        self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _Launch | None:
        recorder, ops = self._recorder, self._ops
        if not recorder.kernels:
            recorder.blind_spots[UNSEEN_LAUNCH] += 1
            return None
        before_trials, self._before_trials = self._before_trials, {}
        known = self._known(kernel.fn)
        operands, others = _split(known.schema.arguments, args, kwargs)
        if any(_has_no_data(operand.tensor) for operand in operands):
            return None  # A tracer at work on shapes.
        tensors: list[Argument] = [(o.slot, o.slot, None, o.tensor) for o in operands]
        point, microbatch = ops.point(known.schema, tensors)
        if point is None:
            recorder.blind_spots["op of a module outside the window"] += 1
            for operand in operands:
                self._drop(look(operand.tensor))
            return None
        occurrence = ops.op_events.count(place_of(point, microbatch))
        call = Call(known.schema, point, microbatch, occurrence)
        around = ops.running.innermost()
        if around is not None:
            call.reads += around.reads_of(None)
        for operand in operands:
            self._read(call, operand, before_trials, is_inside=around is not None)
        if others:
            ops.arguments(call, others)
        return _Launch(known, call, operands, around)

    def _after(self, launch: _Launch) -> None:
        ops, call = self._ops, launch.call
        written = []
        for operand in launch.operands:
            view = look(operand.tensor)
            digest = ops.digest(operand.tensor, view, now=True)
            if digest is None or operand.before is None:
                self._drop(view)
            elif digest != operand.before or operand.slot in launch.kernel.written:
                launch.kernel.written.add(operand.slot)
                written.append((operand, view, digest))
            elif operand.is_unknown:
                self._note_input(call, operand, view, digest)
        for operand, view, digest in written:
            point = call.at("written", operand.slot)
            seq = ops.emit(call, point, digest, operand.tensor, call.reads_of(None))
            if view is not None and view.extent_bytes:
                # No version of the tensor counts what a kernel writes.
                self._recorder.events.cache.forget(view)
                self._ops.writers.put(view, seq, digest)
            if launch.around is not None:
                launch.around.reads.append(seq)

    def _known(self, function: Any) -> _Kernel:
        key = f"{function.__module__}.{function.__qualname__}"
        if key not in self._kernels:
            names = tuple(inspect.signature(function).parameters)
            self._kernels[key] = _Kernel(OpSchema(f"triton.{function.__name__}", names))
        return self._kernels[key]

    # What a launch reads

    def _read(
        self,
        call: Call,
        operand: _Operand,
        before_trials: Mapping[object, bytes | None],
        *,
        is_inside: bool,
    ) -> None:
        """Note what a tensor comes from; record it if no event is known of it."""
        recorder, tensor = self._recorder, operand.tensor
        view = look(tensor)
        if view is not None and view.extent_bytes:
            sources = self._ops.writers.sources(view, FIRST if recorder.between_steps else 0)
            if sources.has_hole:
                call.reads += sources.seqs
            elif is_inside and not sources.known:
                call.reads += sources.seqs
                operand.is_unknown = True
            else:
                self._ops.read(call, operand.slot, None, tensor)
        place = _place(tensor, view)
        if place in before_trials:
            operand.before = before_trials[place]
        else:
            operand.before = self._ops.digest(tensor, view, now=True)

    def _note_input(
        self, call: Call, operand: _Operand, view: PlainView | None, digest: bytes
    ) -> None:
        """Record a tensor that an operator made unseen for its kernel to read."""
        point = call.at("input", operand.slot)
        seq = self._ops.emit(call, point, digest, operand.tensor, call.reads_of(None))
        call.reads.append(seq)
        if view is not None and view.extent_bytes:
            self._ops.writers.put(view, seq, digest)

    def _before_trial(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep what a kernel is given: the launch that follows writes the same once more."""
        recorder = self._recorder
        recorder.blind_spots["trial of a Triton autotuner"] += 1
        if not recorder.kernels:
            return
        for _, tensor in _tensors("", (*args, *kwargs.values())):
            view = look(tensor)
            place = _place(tensor, view)
            if place not in self._before_trials:
                self._before_trials[place] = self._ops.digest(tensor, view, now=True)

    def _drop(self, view: PlainView | None) -> None:
        if view is not None:
            self._recorder.events.cache.forget(view)
            self._ops.writers.drop(view)


def _split(
    parameters: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[_Operand], list[tuple[str, Any]]]:
    """Return the tensors among a launch's arguments, and the other arguments by name."""
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    names = [name for name in parameters if name in given]
    names += sorted(given.keys() - {*parameters, *_NO_ARGUMENTS})
    operands: dict[object, _Operand] = {}
    others: list[tuple[str, Any]] = []
    for name in names:
        for slot, tensor in _tensors(name, given[name]):
            place = _place(tensor, look(tensor))
            if place in operands:  # The same memory twice: a kernel that works in place, say.
                operands[place].slot += f",{slot}"
            else:
                operands[place] = _Operand(slot, tensor)
        if not isinstance(given[name], torch.Tensor):
            others.append((name, _plain(given[name])))
    grid = kwargs.get("grid")
    if isinstance(grid, (tuple, list)):
        others.append(("grid", _plain(grid)))
    return list(operands.values()), others


def _tensors(slot: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield an argument's tensors: itself, in a tuple, below a descriptor or another dtype."""
    if isinstance(value, torch.Tensor):
        yield slot, value
    elif isinstance(value, (tuple, list)):
        for index, element in enumerate(value):
            yield from _tensors(f"{slot}.{index}", element)
    elif isinstance(base := getattr(value, "base", None), torch.Tensor):
        yield slot, base


def _plain(value: Any) -> Any:
    """Return an argument that is no tensor as plain data, equal for equal arguments."""
    if isinstance(value, (tuple, list)):
        return [_plain(element) for element in value]
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(getattr(value, "base", None), torch.Tensor):  # A descriptor, or another dtype.
        told = ("shape", "strides", "block_shape", "padding", "dtype")
        return [_plain(getattr(value, name, None)) for name in told]
    kind = type(value)
    if kind.__name__ == "constexpr":
        return _plain(value.value)
    if kind.__name__ == "dtype":
        return str(value)
    return getattr(value, "__name__", kind.__name__)  # A function that the kernel calls, say.


def _has_no_data(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or type(tensor).__module__.startswith("torch._subclasses")


def _place(tensor: torch.Tensor, view: PlainView | None) -> object:
    return id(tensor) if view is None else (view.storage.data_ptr(), view.where)
