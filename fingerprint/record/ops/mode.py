"""Every operator that runs: what it read, what else it was given, what it made.

A dispatch mode sees the operators below autograd, in the forward, the backward, a recomputation
and the optimizer alike, with nothing put on any module or tensor. It is off while it handles one,
so the recorder's own look-ups are not seen. A tensor subclass with operators of its own (a
distributed tensor, say) is let through to them: what they run on plain tensors comes back here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fpdiff.fingerprint.digest.host import (
    PlainView,
    Undigestible,
    digest_bytes,
    look,
    memory_range,
    shape_of,
    sparse_parts,
)
from fpdiff.fingerprint.record.events.prelude import FIRST, place_of
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.generators import generator_of
from fpdiff.fingerprint.record.modules.backward import GradientHooks
from fpdiff.fingerprint.record.modules.nodes import accumulated_leaf
from fpdiff.fingerprint.record.ops.call import Call, RunningCalls
from fpdiff.fingerprint.record.ops.collectives import CollectiveRecorder
from fpdiff.fingerprint.record.ops.schema import OpSchema, describe
from fpdiff.fingerprint.record.ops.values import Argument, results, shown, split
from fpdiff.fingerprint.record.ops.writers import HOLE
from fpdiff.fingerprint.record.quiet import stop_after
from fpdiff.fingerprint.record.recorder import Recorder

_MAX_NUMBERS = 32
"""An op's scalars may come from so many of the numbers last taken out of tensors."""

_MAX_ARGUMENTS = 10_000
"""So many different arguments of ops are remembered."""

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


class OpMode(TorchDispatchMode):
    """Shows a recorder every operator that runs in a thread."""

    supports_higher_order_operators = True

    def __init__(self, ops: "OpRecorder") -> None:
        """Lead to the recorder of operators."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops = ops

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled: under another mode it runs eagerly, with other bits."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and record it."""
        kwargs = kwargs or {}
        ops = self._ops
        if not ops.recorder.wants_ops() or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        for kind in types:
            if kind.__module__.startswith("torch._subclasses"):
                return func(*args, **kwargs)  # A tracer's own tensors have no data.
            if has_own_ops(kind):
                return NotImplemented
        call = ops.before(func, args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        if ops.recorder.kernels:
            with ops.recorder.events.device_kernels.mark(call):
                result = ops.running.run(call, func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        ops.after(call, result)
        return result


def _are_only_shapes(tensors: list[Argument]) -> bool:
    """Return whether a tracer is at work: a tensor has no data."""
    for _, _, _, tensor in tensors:  # Half the cost of `any`.
        if tensor.is_meta:
            return True
    return False


@cache
def has_own_ops(kind: type) -> bool:
    """Return whether a tensor's class runs operators in a way of its own."""
    handler = getattr(kind, "__torch_dispatch__", None)
    return handler not in (None, torch._C._disabled_torch_dispatch_impl)


class OpRecorder:
    """Turns operators into events."""

    def __init__(self, recorder: Recorder, gradients: GradientHooks) -> None:
        """Belong to a recorder."""
        self.recorder = recorder
        self.gradients = gradients
        self.op_events = recorder.op_events
        self.writers = recorder.events.writers
        self._schemas: dict[OpOverload, OpSchema] = {}
        self._arguments: dict[str, tuple[str, bytes, float | None]] = {}
        self.running = RunningCalls()
        self.collectives = CollectiveRecorder(self)

    # Around an operator

    def before(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call | None:
        """Record what an operator is about to read; return None if it is not to be followed."""
        call: Call | None = self.observed(self._begin, op, args, kwargs)
        return call

    def after(self, call: Call, result: Any) -> None:
        """Record what an operator made."""
        self.observed(self._after, call, result)

    def observed(self, body: Callable[..., Any], *args: Any) -> Any:
        """Call a function of ours; an error in it stops the recording, never the program."""
        recorder = self.recorder
        # What it runs itself is no event: kernels that digest do not pass the dispatcher.
        outer, recorder.is_observing = recorder.is_observing, True
        # The operator itself runs outside: what it does may hang on torch function modes.
        with torch._C.DisableTorchFunction():
            try:
                return body(*args)
            except BaseException as error:
                if stop_after(recorder, error):
                    raise
                return None
            finally:
                recorder.is_observing = outer

    def _begin(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call | None:
        call = self._before(op, args, kwargs)
        if call is not None and not call.schema.waits:
            self.recorder.lines.note(call.point, call.occurrence)
        return call

    def _before(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call | None:
        schema = self._schemas.get(op)
        if schema is None:
            schema = self._schemas[op] = describe(op)
        if schema.is_idle or (schema.only_reshapes and self._leaves_nothing(args)):
            return None
        tensors, others = split(schema, args, kwargs)
        if _are_only_shapes(tensors):
            return None
        if schema.meets_others:
            taken, call = self.collectives.before(schema, tensors, others, args, kwargs)
            if taken:
                return call
        point, microbatch = self.point(schema, tensors)
        if point is None:
            self._forget(schema, tensors)
            return None
        occurrence = self.op_events.count(place_of(point, microbatch))
        call = Call(schema, point, microbatch, occurrence)
        if schema.is_view:
            self._note_place(call, tensors, others)
        else:
            self._read_all(call, tensors, schema.ignored(others))
        if others and schema.shows_arguments and not schema.allocates:
            self.arguments(call, others)
        if schema.draws:
            self._draw(call, tensors, {**dict(zip(schema.arguments, args, strict=False)), **kwargs})
        return call

    def _leaves_nothing(self, args: tuple[Any, ...]) -> bool:
        """Return whether a view of other shape leaves nothing to record: no event chose its place.

        A quarter of the ops of a GPT's step are such views; all that is noted of them is the line.
        """
        recorder = self.recorder
        tensor: Any = args[0] if args else None
        if type(tensor) not in _PLAIN_TYPES or tensor.layout is not torch.strided:
            return False
        if self.writers.has_views(tensor.untyped_storage()):
            return False
        return recorder.lines.note_running()

    def _after(self, call: Call, result: Any) -> None:
        schema = call.schema
        if schema.is_collective or schema.waits:
            self.collectives.after(call, result)
            return
        if schema.is_view:
            self._look_elsewhere(call, result)
            return
        if schema.allocates:
            self._allocated(call, result)
            return
        made = False
        for slot, index, tensor in call.written:
            made |= self.made(call, "written", slot, index, tensor)
        undefined = []
        for number, slot, value in results(result, schema):
            if not isinstance(value, torch.Tensor):
                self._number(call, slot, value)
            elif number in schema.undefined:
                undefined.append(value)
            else:
                index = int(slot.rsplit(".", 1)[1]) if schema.by_element else None
                made |= self.made(call, "result", slot, index, value)
        if made:
            self._read_instead(undefined)

    # Where an operator runs

    def point(self, schema: OpSchema, tensors: list[Argument]) -> tuple[Point | None, int]:
        """Return the point and microbatch of an op; no point if its module is not recorded."""
        recorder = self.recorder
        scope = recorder.scopes.top()
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and (scope is None or scope.phase != "recompute"):
            return self._point_in_backward(schema)
        if scope is not None:
            if not scope.recorded:
                return None, 0
            return (
                Point(scope.phase, "", scope.path, scope.module_class, scope.call, "", schema.name),
                scope.microbatch,
            )
        if recorder.optimizer.options is not None:
            module = self._module_of(tensors[0][3]) if tensors and tensors[0][2] is None else ""
            return Point("optimizer", "", module, "", 0, "", schema.name), 0
        return Point("other", "", "", "", 0, "", schema.name), recorder.microbatch_outside()

    def _point_in_backward(self, schema: OpSchema) -> tuple[Point | None, int]:
        recorder = self.recorder
        microbatch = self.gradients.microbatch
        node = torch._C._current_autograd_node()
        if node is None:
            return Point("backward", "", "", "", 0, "", schema.name), microbatch
        leaf = accumulated_leaf(node)
        if leaf is not None:
            return Point("backward", "", self._module_of(leaf), "", 0, "", schema.name), microbatch
        scope = recorder.nodes.scope_of(node)
        phase = "backward"
        if torch.is_grad_enabled() and not self.gradients.makes_graph:
            phase = "recompute"
        if scope is None:
            return Point(phase, "", "", "", 0, "", schema.name), microbatch
        if not scope.recorded:
            return None, 0
        point = Point(phase, "", scope.path, scope.module_class, scope.call, "", schema.name)
        return point, scope.microbatch

    def _module_of(self, tensor: torch.Tensor) -> str:
        place = self.recorder.state.owned(tensor)
        return "" if place is None else place.module

    def _forget(self, schema: OpSchema, tensors: list[Argument]) -> None:
        """Let go of what is known of memory that an op outside the window is about to write."""
        self.recorder.blind_spots["op of a module outside the window"] += 1
        for name, _, _, tensor in tensors:
            if name in schema.writes and (view := look(tensor)) is not None:
                self.writers.drop(view)

    # What an operator reads

    def _read_all(self, call: Call, tensors: list[Argument], ignored: frozenset[str]) -> None:
        schema = call.schema
        for name, slot, index, tensor in tensors:
            if name in schema.writes:
                call.written.append((slot, index, tensor))
            if name not in ignored:
                self.read(call, slot, index, tensor)
            else:
                self.land(tensor)  # Before it is overwritten.

    def land(self, tensor: torch.Tensor) -> None:
        """Record what collectives have left in a tensor, if anything: the program may touch it."""
        view = look(tensor)
        if view is not None and view.extent_bytes:
            self.writers.sources(view)

    def read(self, call: Call, slot: str, index: int | None, tensor: torch.Tensor) -> None:
        """Note what a tensor that an op reads comes from; record it if no event is known of it."""
        view = look(tensor)
        if view is None:
            for name, part in sparse_parts(tensor):
                self.read(call, f"{slot}.{name}", index, part)
            return
        if not view.extent_bytes:
            return
        recorder = self.recorder
        first = FIRST if recorder.between_steps else 0
        sources = self.writers.sources(view, first)
        if recorder.settings.rehash and view.is_on_host and view.has_memory:
            # After the look above, which takes in what a collective has written meanwhile.
            self._rehash(call, slot, tensor, view)
            sources = self.writers.sources(view, first)
        seqs = sources.seqs
        if not sources.known:
            earlier = self.writers.sources(view).seqs if first else []
            if sources.has_hole:
                point = call.at("uninitialised", slot)
                seq = self.emit(call, point, HOLE, tensor, seqs, earlier)
                self.writers.put(view, seq, is_hole=True)
            elif (digest := self.digest(tensor, view)) is not None:
                point = call.at("input", slot)
                seq = self.emit(call, point, digest, tensor, seqs, earlier)
                self.writers.put(view, seq, digest)
            else:
                return
            seqs = [*seqs, seq]
        if index is None:
            call.reads += seqs
        else:
            call.by_element.setdefault(index if call.schema.by_element else 0, []).extend(seqs)

    def _rehash(self, call: Call, slot: str, tensor: torch.Tensor, view: PlainView) -> None:
        """Record a tensor that is no longer what the ops that wrote it left."""
        recorder = self.recorder
        of_memory = recorder.events.cache.of_memory
        storage = view.storage
        if not self.writers.rewritten(
            view, lambda start, end: of_memory(memory_range(storage, start, end))
        ):
            return
        digest = self.digest(tensor, view)
        if digest is not None:
            reads = self.writers.sources(view, FIRST if recorder.between_steps else 0).seqs
            point = call.at("rewrite", slot)
            seq = self.emit(call, point, digest, tensor, reads)
            self.writers.put(view, seq, digest)

    def arguments(
        self,
        call: Call,
        others: list[tuple[str, Any]],
        *,
        reads: Sequence[int] = (),
        span: int = 0,
    ) -> None:
        """Record the arguments that are no tensors: a scalar is data.

        Args:
            call: the call.
            others: names and values.
            reads: seqs of events that they may come from, beside numbers and options.
            span: they may also come from so many events just before.
        """
        recorder = self.recorder
        slot, digest, value = self._told(others)
        reads = [*reads, *self.op_events.numbers[-_MAX_NUMBERS:]]
        if call.point.phase == "optimizer" and recorder.optimizer.options:
            reads = [*recorder.optimizer.options, *reads]
        if (node := torch._C._current_autograd_node()) is not None:
            reads = [*recorder.nodes.arguments_of(node), *reads]
        place = call.place
        if place is not None and (chosen := self.writers.chosen(place)) is not None:
            reads = [*reads, chosen]
        point = call.at("arguments", slot)
        seq = self.op_events.emit(call, point, digest, reads=reads, value=value, span=span)
        call.reads.append(seq)
        if torch.is_grad_enabled() and not recorder.between_steps:
            recorder.nodes.note_arguments(seq)

    def _told(self, others: list[tuple[str, Any]]) -> tuple[str, bytes, float | None]:
        """Return slot, digest and the one number of an op's other arguments."""
        key = repr(others)
        known = self._arguments.get(key)
        if known is not None:
            return known
        text = ", ".join(f"{name}={shown(value)}" for name, value in others)
        numbers = [value for _, value in others if type(value) in (int, float)]
        value = float(numbers[0]) if len(numbers) == 1 and abs(numbers[0]) < 1 << 53 else None
        told = ",".join(name for name, _ in others), digest_bytes(text.encode()), value
        if len(self._arguments) < _MAX_ARGUMENTS:
            self._arguments[key] = told
        return told

    def _draw(self, call: Call, tensors: list[Argument], named: Mapping[str, Any]) -> None:
        """Record the state of the generator that an op is going to draw from."""
        device = tensors[0][3].device if tensors else named.get("device") or "cpu"
        self.drawn(call, *generator_of(named.get("generator"), torch.device(device)))

    def drawn(self, call: Call, name: str, key: object, state: bytes) -> None:
        """Record the state in which a call found the generator that it draws from.

        Args:
            call: the call.
            name: of the generator, as `generators.generator_of` tells it; `key` too.
            state: digest of the state.
        """
        recorder = self.recorder
        before = self.op_events.draws.get(key)
        point = call.at("generator", name)
        reads = [] if before is None else [before]
        seq = self.op_events.emit(call, point, state, reads=reads)
        self.op_events.draws[key] = seq
        if not recorder.between_steps:
            self.op_events.draws_in_call.append(seq)
        call.reads.append(seq)

    # What an operator makes

    def made(
        self, call: Call, kind: str, slot: str, index: int | None, tensor: torch.Tensor
    ) -> bool:
        """Record a tensor that an op has written; return whether there is an event of it."""
        view = look(tensor)
        digest = self.digest(tensor, view)
        if digest is None:
            return False
        element = index if call.schema.by_element else None
        point = call.at(kind, slot)
        seq = self.emit(call, point, digest, tensor, call.reads_of(element))
        if call.mark:
            self.recorder.events.device_kernels.note(call, seq)
        if view is None:
            for _, part in sparse_parts(tensor):
                if (own := look(part)) is not None and own.extent_bytes:
                    self.writers.put(own, seq)
        elif view.extent_bytes:
            self.writers.put(view, seq, digest)
        return True

    def _number(self, call: Call, slot: str, value: Any) -> None:
        """Record a number that leaves torch: what the program makes of it is not seen."""
        point = call.at("number", slot)
        digest = digest_bytes(shown(value).encode())
        number = float(value) if isinstance(value, (int, float)) else None
        reads = call.reads_of(None)
        seq = self.op_events.emit(call, point, digest, reads=reads, value=number)
        self.op_events.numbers.append(seq)

    def _allocated(self, call: Call, result: Any) -> None:
        for _, _, tensor in results(result, call.schema):
            if (view := look(tensor)) is not None and view.extent_bytes:
                self.writers.allocate(view)

    def _read_instead(self, undefined: list[torch.Tensor]) -> None:
        """Make whoever reads a tensor that holds nothing read the op that should have filled it."""
        last = self.op_events.last_seq()
        for tensor in undefined:
            if (view := look(tensor)) is not None and view.extent_bytes:
                self.writers.put(view, last)

    # Views

    def _note_place(
        self, call: Call, tensors: list[Argument], others: list[tuple[str, Any]]
    ) -> None:
        """Note where a view looks from, if an event chose that place or is going to."""
        tensor = tensors[0][3] if tensors else None
        if tensor is None or tensor.layout is not torch.strided:
            return
        if type(tensor) not in _PLAIN_TYPES:
            return
        chooses = bool(others) and call.schema.shows_arguments
        if chooses or self.writers.has_views(tensor.untyped_storage()):
            view = look(tensor)
            call.place = view if view is not None and view.extent_bytes else None

    def _look_elsewhere(self, call: Call, result: Any) -> None:
        """Note which event chose what part of its storage a new view looks at."""
        chosen = call.reads[0] if call.reads else None
        if chosen is None and call.place is not None:
            chosen = self.writers.chosen(call.place)
        if chosen is None:
            return
        for _, _, tensor in results(result, call.schema):
            if (view := look(tensor)) is not None and view.extent_bytes:
                self.writers.choose(view, chosen)

    def phase(self) -> tuple[str, int]:
        """Return the phase and microbatch of an op that belongs to no module."""
        recorder = self.recorder
        scope = recorder.scopes.top()
        if torch._C._current_graph_task_id() != -1:
            return "backward", self.gradients.microbatch
        if scope is not None:
            return scope.phase, scope.microbatch
        phase = "other" if recorder.optimizer.options is None else "optimizer"
        return phase, recorder.microbatch_outside()

    # Events

    def digest(
        self, tensor: torch.Tensor, view: PlainView | None, *, now: bool = False
    ) -> bytes | None:
        """Return a tensor's digest; None, and a blind spot, if its bytes cannot be read.

        Args:
            tensor: the tensor.
            view: what `host.look` returns for it.
            now: it is going to be compared, so a placeholder will not do.
        """
        cache = self.recorder.events.cache
        try:
            if now:
                return cache.digest_now(tensor, view)
            return cache.digest(tensor, view, trust=False, remember=False)
        except Undigestible as reason:
            self.recorder.blind_spots[str(reason)] += 1
            return None

    def emit(
        self,
        call: Call,
        point: Point,
        digest: bytes,
        tensor: torch.Tensor,
        reads: list[int],
        earlier: list[int] | None = None,
        span: int = 0,
    ) -> int:
        """Record a tensor at a call and return the event's seq; see `OpEvents.emit`."""
        recorder = self.recorder
        if recorder.settings.stats and not recorder.between_steps:
            recorder.events.note_stats(tensor)
        return self.op_events.emit(
            call,
            point,
            digest,
            tensor.dtype,
            shape_of(tensor),
            reads,
            earlier,
            span=span,
        )
