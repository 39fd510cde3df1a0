"""Module hooks: the batch, what each module was given, and what it returned.

The hooks are global ones, so no model has to be at hand and nothing is set on any module: hooks
on modules would switch off fused paths and with them change bits.
"""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from fpdiff.fingerprint.digest.host import PlainView, look
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.generators import torch_state
from fpdiff.fingerprint.record.identity import IdentityTable
from fpdiff.fingerprint.record.modules.backward import GradientHooks
from fpdiff.fingerprint.record.modules.containers import Slots, arguments, outputs
from fpdiff.fingerprint.record.modules.names import below, is_compiled
from fpdiff.fingerprint.record.modules.scopes import MAX_READS, Scope
from fpdiff.fingerprint.record.quiet import observing
from fpdiff.fingerprint.record.recorder import Recorder


def _is_below_root(hooks: "ModuleHooks", module: nn.Module, *_: Any) -> bool:
    """Return whether nothing is recorded of a call: at rung step, that of a root's own module.

    A root that calls itself is no such module: its calls are kept paired.
    """
    if hooks.recorder.layers:
        return False
    running = hooks.recorder.scopes.top_module()
    return running is not None and running is not module


class ModuleHooks:
    """The bodies of the global forward hooks."""

    def __init__(self, recorder: Recorder, gradients: GradientHooks) -> None:
        """Belong to a recorder."""
        self.recorder = recorder
        self.gradients = gradients
        self._forwards: IdentityTable[tuple[int, int]] = IdentityTable()  # step and how many

    @partial(observing, unless=_is_below_root, is_told=True)
    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Enter a module's call: draw the scope, find or record what it was given."""
        recorder = self.recorder
        scopes = recorder.scopes
        parent = scopes.top()
        if parent is None and not self._enter_root(module):
            return
        if parent is not None and not recorder.layers:
            scopes.enter(module, parent)
            return
        if parent is not None and parent.is_opaque:
            return
        if recorder.names.is_wrapper(module) or not recorder.touch():
            return
        scope = self._scope(module, parent)
        if scope.is_opaque or module._compiled_call_impl is not None:
            recorder.blind_spots["compiled region: what is inside it"] += 1
        elif isinstance(module, torch.jit.ScriptModule) and len(module._modules):
            recorder.blind_spots["scripted module: the modules inside it"] += 1
        self._note_draw(parent)
        kwargs = _keyword_arguments()
        scope.reads = self._record_arguments(scope, *arguments(args, kwargs))
        scope.reads += recorder.state.read_by(module, scope.path, scope.phase)
        if parent is not None and parent.received:  # Shards of this module's parameters, say.
            scope.received += parent.received
            scope.reads += parent.received
        scopes.enter(module, scope)
        if recorder.ops:
            recorder.nodes.mark(scope)

    @partial(observing, unless=_is_below_root)
    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Leave a module's call and record its outputs; also called after an exception."""
        recorder = self.recorder
        scope = recorder.scopes.leave(module)
        if scope is not None and recorder.ops:
            recorder.nodes.mark(scope.parent)
        if scope is None or not recorder.touch():
            return
        self._note_draw(scope)
        found, opaque = outputs(output)
        self._note_opaque(opaque)
        seqs = [self._record_output(scope, slot, tensor) for slot, tensor in found]
        done = [seq for seq in seqs if seq is not None]
        if recorder.layers:
            recorder.calls_read[scope.path, scope.microbatch] = scope.all_reads() + done
        if scope.parent is not None:
            # A call without recorded outputs may have changed something in place.
            scope.parent.reads.extend(done if scope.recorded and done else scope.reads)
        else:
            recorder.root_outputs.extend(done or scope.reads)

    # Entering

    def _enter_root(self, module: nn.Module) -> bool:
        """Begin to record, name the root, open the step; return whether to go on."""
        recorder = self.recorder
        if not recorder.begin():
            return False
        recorder.optimizer.interrupt()
        if recorder.is_untrained() and recorder.names.take_over(module):
            recorder.state.rename(module)
        recorder.names.adopt(module)
        root = recorder.names.root_of(module)
        if root is not None:
            recorder.state.note_call(root, recorder.step + recorder.boundary_due)
        if not recorder.touch():
            return False
        if root is not None:
            with recorder.events.together():
                recorder.state.record_root(root)
        return True

    def _scope(self, module: nn.Module, parent: Scope | None) -> Scope:
        recorder = self.recorder
        path = recorder.names.path(module, parent.path if parent is not None else "")
        if parent is not None:
            phase, microbatch = parent.phase, parent.microbatch
        elif torch._C._current_graph_task_id() != -1:
            phase, microbatch = "recompute", self.gradients.microbatch
        elif torch.is_grad_enabled():
            recorder.state.record_settings()
            phase, microbatch = "forward", self._next_microbatch(module)
        else:
            phase, microbatch = "eval", recorder.events.microbatch
        if parent is None:
            recorder.switches.look(phase, path, recorder.step)
        place = (phase, path, microbatch)
        call = recorder.calls[place]
        recorder.calls[place] = call + 1
        return Scope(
            path=path,
            module_class=type(module).__name__,
            call=call,
            phase=phase,
            microbatch=microbatch,
            parent=parent,
            recorded=parent is None or recorder.settings.wants_module(path),
            # A scripted module's class has none.
            only_passes=getattr(type(module), "forward", None) is nn.Sequential.forward,
            is_opaque=is_compiled(module),
        )

    def _next_microbatch(self, root: nn.Module) -> int:
        """Count the forwards of a trainable root within the step; others belong to the current."""
        recorder = self.recorder
        if not any(p.requires_grad for p in root.parameters()):
            return recorder.events.microbatch
        step, count = self._forwards.get(root) or (-1, 0)
        count = count if step == recorder.step else 0
        self._forwards.put(root, (recorder.step, count + 1))
        recorder.events.microbatch = count
        recorder.has_gone_back = False
        return count

    # Recording

    def _record_arguments(self, scope: Scope, found: Slots, opaque: list[str]) -> list[int]:
        """Return the seqs of a call's tensor arguments, recording those not known yet."""
        self._note_opaque(opaque)
        if not scope.recorded:
            return []
        recorder = self.recorder
        seqs = []
        for slot, tensor in found:
            view = look(tensor)
            if scope.parent is None:
                seq = self._record_batch(scope, slot, tensor, view)
            else:
                seq, exact = recorder.events.producer_of(tensor, view)
                if not exact:
                    seq = self._record_fresh(scope, slot, tensor, view, seq)
                elif recorder.settings.rehash and seq is not None:
                    seq = self._rehash(scope, slot, tensor, view, seq)
                if exact and seq is not None:
                    recorder.consumers.setdefault(seq, []).append(scope)
            if seq is not None:
                seqs.append(seq)
        return seqs

    def _record_batch(
        self, scope: Scope, slot: str, tensor: torch.Tensor, view: PlainView | None
    ) -> int | None:
        """Record an argument of a root, at each call; it may come from an earlier root's output."""
        recorder = self.recorder
        producer, exact = recorder.events.producer_of(tensor, view)
        reads, span = self._reads(recorder.root_outputs if producer is None else [producer])
        seq = recorder.events.emit_tensor(
            _point(scope, "input", slot),
            tensor,
            view,
            microbatch=scope.microbatch,
            reads=reads,
            span=span,
        )
        if exact and producer is not None:
            recorder.consumers.setdefault(producer, []).append(scope)
        return seq

    def _record_fresh(
        self,
        scope: Scope,
        slot: str,
        tensor: torch.Tensor,
        view: PlainView | None,
        base: int | None,
    ) -> int | None:
        """Record a tensor that the caller's own code made: the caller is where it came from."""
        caller = scope.parent
        assert caller is not None
        name = below(scope.path, caller.path)
        if scope.path == caller.path:
            name = scope.module_class
        made_from = caller.all_reads()
        reads, span = self._reads([*made_from, base] if base is not None else made_from)
        return self.recorder.events.emit_tensor(
            _point(caller, "input", f"{name}.{slot}"),
            tensor,
            view,
            microbatch=scope.microbatch,
            reads=reads,
            span=span,
        )

    def _rehash(
        self, scope: Scope, slot: str, tensor: torch.Tensor, view: PlainView | None, seq: int
    ) -> int | None:
        """Record an argument anew if its bytes are no longer what its producer left."""
        recorder = self.recorder
        before = recorder.events.digest_of(seq)
        if before is None or recorder.events.cache.digest(tensor, view, trust=False) == before:
            return seq
        return recorder.events.emit_tensor(
            _point(scope, "rewrite", slot),
            tensor,
            view,
            microbatch=scope.microbatch,
            reads=[seq],
        )

    def _record_output(self, scope: Scope, slot: str, tensor: torch.Tensor) -> int | None:
        recorder = self.recorder
        view = look(tensor)
        producer, exact = recorder.events.producer_of(tensor, view)
        if not recorder.layers or not scope.recorded:
            return producer
        # An output that a child (or the caller) already made is passed on, not computed here.
        passed_on = exact and producer is not None
        reads, span = self._reads([producer] if passed_on and producer is not None else scope.reads)
        seq = recorder.events.emit_tensor(
            _point(scope, "output", slot),
            tensor,
            view,
            trust=not recorder.settings.rehash,
            microbatch=scope.microbatch,
            reads=reads,
            span=span,
        )
        if seq is None:
            return None
        if passed_on and producer is not None:
            recorder.passed_on[producer] = (seq, scope)
        elif scope.phase != "eval":
            self.gradients.follow(tensor, scope, slot, seq)
        return seq

    def _reads(self, seqs: list[int]) -> tuple[list[int], int]:
        """Return the reads and the span of an event that may have read each of `seqs`."""
        if len(seqs) <= MAX_READS:
            return seqs.copy(), 0
        return [], self.recorder.events.next_seq() - min(seqs)

    def _note_draw(self, scope: Scope | None) -> None:
        """Record the generators' state before the draw of a call that has drawn since last time."""
        recorder = self.recorder
        before, now = recorder.generator_state, torch_state()
        if now == before:
            return
        recorder.generator_state = now
        draws = recorder.op_events.take_draws()
        if scope is None or not scope.recorded:
            return
        reads = [recorder.generator_seq] if recorder.generator_seq >= 0 else []
        reads += draws
        recorder.generator_seq = recorder.events.emit(
            _point(scope, "generator", "torch"), before, microbatch=scope.microbatch, reads=reads
        )
        scope.reads.append(recorder.generator_seq)

    def _note_opaque(self, opaque: list[str]) -> None:
        for name in opaque:
            self.recorder.blind_spots[f"argument or output of type {name}"] += 1


def _point(scope: Scope, kind: str, slot: str) -> Point:
    return Point(scope.phase, kind, scope.path, scope.module_class, scope.call, slot)


def _keyword_arguments() -> Mapping[str, Any]:
    """Return the keyword arguments of the call that a hook runs for.

    Torch gives them to global hooks only after the call, when in-place code may have changed
    them. They are a variable of the frame that runs the hooks: this function's caller's
    caller's caller.
    """
    kwargs = sys._getframe(3).f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, Mapping) else {}
