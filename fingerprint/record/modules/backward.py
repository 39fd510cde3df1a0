"""Losses, gradients with respect to module outputs, and parameters' local gradients.

Nothing is inserted into the graph: a hook on a tensor or on a leaf's accumulation only listens.
A gradient with respect to a module's output is computed by whatever consumed that output, so it
is recorded under the consumer: the module that got it as an argument if there is exactly one at
that level, else the module whose own code used it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from fpdiff.fingerprint.digest.host import is_number, look
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.identity import IdentityTable
from fpdiff.fingerprint.record.modules.names import below
from fpdiff.fingerprint.record.modules.nodes import accumulated_leaf
from fpdiff.fingerprint.record.modules.scopes import MAX_READS, Scope
from fpdiff.fingerprint.record.quiet import observing
from fpdiff.fingerprint.record.recorder import Recorder

Engine = Callable[..., Any]


class GradientHooks:
    """The bodies of the backward hooks."""

    def __init__(self, recorder: Recorder) -> None:
        """Belong to a recorder."""
        self.recorder = recorder
        self.microbatch = 0
        self.makes_graph = False
        self.handles: list[torch.utils.hooks.RemovableHandle] = []
        self._followed: IdentityTable[bool] = IdentityTable()

    # The engine

    def watch(self, engine: Engine) -> Engine:
        """Wrap the function that every backward pass goes through.

        `torch.autograd.backward` and `torch.autograd.grad` both call it, and nothing else says
        which tensors a pass began from or when it begins.
        """

        @functools.wraps(engine)
        def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with self.recorder.threads.passing() as followed:
                return (watched if followed else engine)(tensors, *args, **kwargs)

        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            accumulates = bool(kwargs.get("accumulate_grad"))
            self.begin_pass(tensors, accumulates)
            # (gradients, retain_graph, create_graph, inputs): where grad mode is on in a pass that
            # makes no graph, a checkpoint is recomputing.
            outer, self.makes_graph = self.makes_graph, len(args) > 2 and bool(args[2])
            nodes = self.recorder.nodes
            outer_table, nodes.of_pass = nodes.of_pass, nodes.here()
            try:
                return engine(tensors, *args, **kwargs)
            finally:
                nodes.of_pass = outer_table
                self.makes_graph = outer
                self.end_pass(accumulates)

        return run

    @observing
    def begin_pass(self, tensors: Any, accumulates: bool) -> None:
        """Record the loss of an outermost `backward()`."""
        recorder = self.recorder
        if torch._C._current_graph_task_id() != -1 or not recorder.has_begun():
            return
        if not recorder.touch():
            return
        recorder.switches.look("backward", "", recorder.step)
        self.microbatch = recorder.events.microbatch
        self.follow_parameters()
        recorder.backward_first_seq = recorder.events.next_seq()  # Every gradient reads the loss.
        if accumulates:
            for index, tensor in enumerate(tensors):
                self._loss(index, tensor)

    @observing
    def end_pass(self, accumulates: bool) -> None:
        """End an outermost pass; what it returned, the program may compute with."""
        recorder = self.recorder
        if torch._C._current_graph_task_id() != -1 or not recorder.has_begun():
            return
        if accumulates:
            recorder.has_gone_back = True
        elif recorder.continues():
            recorder.root_outputs.extend(
                range(recorder.backward_first_seq, recorder.events.next_seq())
            )
        recorder.optimizer.resume()

    def _loss(self, index: int, tensor: Any) -> None:
        recorder = self.recorder
        if not isinstance(tensor, torch.Tensor):  # A gradient edge names a node, not a tensor.
            recorder.blind_spots["backward() called on a gradient edge"] += 1
            return
        view = look(tensor)
        producer, exact = recorder.events.producer_of(tensor, view)
        if exact:
            reads: dict[str, Any] = {"reads": [producer]}
        elif recorder.layers and 0 < len(recorder.root_outputs) <= MAX_READS:
            scalers = recorder.state.step_settings.scaler_seqs
            alone = recorder.state.trained_alone[:MAX_READS]
            reads = {"reads": sorted({*recorder.root_outputs, *scalers, *alone})}
        else:
            reads = {"span": recorder.events.num_step_events()}
        point = Point("forward", "loss", "", "", 0, f"loss.{index}")
        recorder.events.emit_tensor(point, tensor, view, value=True, **reads)

    # Clipping

    def watch_clipping(self, clip: Engine) -> Engine:
        """Wrap the function that scales gradients by their norm, which it is given.

        `clip_grad_norm_` calls it by its name in its module; the norm is a metric of the step.
        """

        @functools.wraps(clip)
        def watched(
            parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kw: Any
        ) -> Any:
            self.clipped(total_norm)
            return clip(parameters, max_norm, total_norm, *args, **kw)

        return watched

    @observing
    def clipped(self, norm: Any) -> None:
        """Record the norm that gradients are clipped by, unless it is spread over ranks."""
        recorder = self.recorder
        if isinstance(norm, torch.Tensor) and is_number(norm) and recorder.continues():
            recorder.events.emit_number(Point("other", "metric", "", "", 0, "grad_norm"), norm)

    # Module outputs

    def follow(self, tensor: torch.Tensor, scope: Scope, slot: str, seq: int) -> None:
        """Listen for the gradient with respect to a module's output, event `seq`."""
        if not (torch.is_grad_enabled() and tensor.requires_grad) or tensor.is_leaf:
            return
        body = functools.partial(self._gradient, scope, slot, seq, self.recorder.step)

        def hook(gradient: torch.Tensor) -> None:
            body(gradient)

        # Pickling a tensor with a hook warns unless the hook says that it may be lost.
        hook.__torch_unserializable__ = True  # type: ignore[attr-defined]
        tensor.register_hook(hook)

    @observing
    def _gradient(
        self, scope: Scope, slot: str, seq: int, step: int, gradient: torch.Tensor | None
    ) -> None:
        recorder = self.recorder
        if gradient is None or not recorder.touch():
            return
        where = self._consumer(scope, seq, step)
        # Under no consumer the path in full, since it may be below another root.
        name = below(scope.path, scope.parent.path) if scope.parent and where else scope.path
        slot = f"grad.{name or 'root'}.{slot}"
        self.microbatch = scope.microbatch
        view = look(gradient)
        producer, _ = recorder.events.producer_of(
            gradient, view
        )  # Of a pipeline, the next stage sent it.
        reads = [seq] if step == recorder.step else []
        reads += [] if producer is None else [producer]
        if where is not None and step == recorder.step:
            reads += where.all_reads()
        if where is None:
            point = Point("backward", "gradient", "", "", 0, slot)
        else:
            point = Point("backward", "gradient", where.path, where.module_class, where.call, slot)
        reads, span = self._edges(reads, recorder.backward_first_seq)
        recorder.events.emit_tensor(
            point,
            gradient,
            view,
            follow=False,
            remember=False,
            microbatch=scope.microbatch,
            reads=reads,
            span=span,
        )

    def _consumer(self, scope: Scope, seq: int, step: int) -> Scope | None:
        """Return the call whose backward computed the gradient of output `seq`."""
        recorder = self.recorder
        if step != recorder.step:
            return scope.parent
        while (passed := recorder.passed_on.get(seq)) is not None:
            seq, scope = passed
        consumers = recorder.consumers.get(seq, [])
        level = [c for c in consumers if c.parent is scope.parent]
        found = level[0] if len(level) == 1 else scope.parent
        while found is not None and found.only_passes:
            inner = [c for c in consumers if c.parent is found]
            if len(inner) != 1:
                break
            found = inner[0]
        return found

    # Parameters

    def follow_parameters(self) -> None:
        """Listen on every trainable parameter of the known roots; once each."""
        for root in self.recorder.names.roots():
            for parameter in root.parameters():
                if not parameter.requires_grad or not parameter.is_leaf:
                    continue
                if parameter not in self._followed:
                    self._followed.put(parameter, True)
                    self.handles.append(
                        parameter.register_post_accumulate_grad_hook(self.accumulated)
                    )

    @observing
    def accumulated(self, parameter: torch.Tensor) -> None:
        """Record a parameter's gradient as accumulated on this rank, before any reduction."""
        recorder = self.recorder
        node = torch._C._current_autograd_node()
        if node is None or accumulated_leaf(node) is not parameter:
            return  # FSDP calls this when it has reduced the gradient: it is no rank's own.
        if parameter.grad is None or not recorder.touch():
            return
        place = recorder.state.owned(parameter)
        if place is None:
            return
        reads = list(recorder.state.module_reads.get(place.module, ()))
        reads += recorder.calls_read.get((place.module, self.microbatch), ())
        if (before := recorder.gradient_seqs.get(id(parameter))) is not None:
            reads.append(before)  # It was added to what an earlier pass left.
        reads, span = self._edges(reads, self._first_seq())
        seq = recorder.events.emit_tensor(
            place.local_gradient,
            parameter.grad,
            trust=recorder.ops,  # Else a C++ reducer's writes go unseen.
            follow=False,
            microbatch=self.microbatch,
            reads=reads,
            span=span,
        )
        if seq is not None:
            recorder.gradient_seqs[id(parameter)] = seq

    def _edges(self, reads: list[int], first: int) -> tuple[list[int], int]:
        """Return reads and span of an event that read `reads` and all since `first`."""
        if len(reads) > MAX_READS:  # Too many to list: a longer span holds them all.
            reads, first = [], min(first, *reads)
        return reads, self.recorder.events.next_seq() - first

    def _first_seq(self) -> int:
        """Return the first event that a gradient may have read besides its module's own."""
        recorder = self.recorder
        return recorder.backward_first_seq if recorder.layers else recorder.events.first_seq

    def remove(self) -> None:
        """Stop listening on parameters."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self._followed.clear()
