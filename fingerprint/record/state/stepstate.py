"""Everything that a step starts from, and what an optimizer made of its part of it.

At the start of a step: parameters, buffers (non-persistent ones too), what the optimizers hold for
each parameter, generators; before its first training forward: its settings. After an optimizer's
step: the parameters and what it holds for them, so that the last step of a run is complete. A
tensor that nothing has written since is not digested again.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from fpdiff.fingerprint.digest.host import look
from fpdiff.fingerprint.record import generators
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.identity import IdentityTable
from fpdiff.fingerprint.record.modules.scopes import MAX_READS
from fpdiff.fingerprint.record.state.discovery import Discovery
from fpdiff.fingerprint.record.state.places import Place
from fpdiff.fingerprint.record.state.stepsettings import StepSettings
from fpdiff.fingerprint.record.state.values import emit_kept

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.recorder import Recorder


class StateRecorder:
    """Emits the state events of a recorder."""

    def __init__(self, recorder: "Recorder") -> None:
        """Start with nothing known."""
        self.recorder = recorder
        self.discovery = Discovery()
        self.step_settings = StepSettings(recorder, self.discovery)
        self.module_reads: dict[str, list[int]] = {}
        self.parameter_seqs: dict[int, int] = {}
        # Of what an optimizer trains and no module holds (a temperature): a loss may read it.
        self.trained_alone: list[int] = []
        self._held_seqs: dict[int, list[int]] = {}
        self._recorded: IdentityTable[bool] = IdentityTable()  # roots, in this step
        self._called: IdentityTable[int] = IdentityTable()  # the last step of a root
        self._begins: IdentityTable[bool] = IdentityTable()  # roots that were new when called
        self._last_step = -1
        self._in_use_since = 0
        self._places: IdentityTable[Place] = IdentityTable()
        self._masters: IdentityTable[Place] = IdentityTable()
        self._versions: IdentityTable[int] = IdentityTable()  # of parameters, when recorded
        self._rewritten: dict[int, int] = {}  # seqs of those that the step has written since
        self.has_received = False  # a collective has left something in the step, in a parameter say

    def record_tensors(self) -> None:
        """Emit parameters, buffers, optimizer state and generators; when a step opens."""
        recorder = self.recorder
        self.discovery.look(recorder.names)
        self.step_settings.clear()
        self.module_reads.clear()
        self.parameter_seqs.clear()
        self.trained_alone.clear()
        self._held_seqs.clear()
        self._masters.clear()  # They are named by their place among others.
        self._recorded.clear()
        self._versions.clear()
        self._rewritten.clear()
        self.has_received = False
        with recorder.events.together():
            for root in self._roots_in_use():
                self.record_root(root)
            for _, optimizer in self.discovery.optimizers(self._in_use_since):
                self._record_masters(optimizer)
                self._record_held(optimizer)
        for name, digest in generators.states():
            recorder.events.emit(Point("init", "generator", "", "", 0, name), digest)

    def catch_up(self, optimizer: torch.optim.Optimizer) -> None:
        """Emit what an optimizer that nothing has shown before starts from, before it steps.

        A model that was tried out before its optimizer existed has begun the first step: what else
        was made since is looked for. Later, what was new at the start of the step is known.
        """
        if not self.step_settings.recorded or self.discovery.knows(optimizer):
            return
        known = self.discovery.optimizers(self._in_use_since)
        if self.discovery.has_looked_once():
            self.discovery.look_now(self.recorder.names)
            for root in self._roots_in_use():
                self.record_root(root)
                self._record_made(root)
        self.discovery.note_step(optimizer, self.recorder.step)
        for found in self.discovery.optimizers(self._in_use_since):
            if found not in known:
                self._record_masters(found[1])
                self._record_held(found[1])
        self.step_settings.record_found(self._in_use_since)

    def note_call(self, root: nn.Module, step: int) -> None:
        """Note that a root was called in a step.

        A root that was not called in the step before begins something new: what was in use until
        then no longer is. A metric or a teacher begins nothing, nor does the evaluation of an
        average, or of a whole of which the parts are in use.
        """
        before = self._called.get(root)
        trained = (parameter for parameter in root.parameters() if parameter.requires_grad)
        if before is None and any(self._places.get(parameter) is None for parameter in trained):
            self._begins.put(root, True)
        is_trained = any(parameter.requires_grad for parameter in root.parameters())
        begins = is_trained and (torch.is_grad_enabled() or root in self._begins)
        if step != self._last_step and begins:
            self._last_step = step
            self._in_use_since = step if before is None or before < step - 1 else step - 1
        self._called.put(root, step)

    def rename(self, root: nn.Module) -> None:
        """Forget what a root's parameters were called: it was named anew."""
        self.module_reads.clear()
        for parameter in root.parameters():
            self._places.drop(parameter)

    def _roots_in_use(self) -> list[nn.Module]:
        """Return the roots in use at the start of the step, and copies never called.

        The others are recorded when they are called again; whether they still exist may hang on
        when Python's collector last ran, which is no property of the program.
        """
        roots = []
        for root in self.recorder.names.roots():
            known = self._called.get(root)
            if known is None or known >= self._in_use_since:
                roots.append(root)
        return roots

    def record_root(self, root: nn.Module) -> None:
        """Emit the parameters and buffers of one root, once a step."""
        if root in self._recorded:
            return
        self._recorded.put(root, True)
        recorder = self.recorder
        for path, module in recorder.names.modules(root):
            if path in self.module_reads:
                continue
            kind = type(module).__name__
            reads: list[int] = []
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    reads += self._parameter(path, kind, name, parameter)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    point = Point("init", "buffer", path, kind, 0, name)
                    seq = recorder.events.emit_tensor(point, buffer)
                    reads += [] if seq is None else [seq]
            # So many stand for a span, which they begin: each parameter's gradient reads them all.
            self.module_reads[path] = sorted(reads)[: MAX_READS + 1]

    def _record_made(self, root: nn.Module) -> None:
        """Emit the parameters that lazy modules have made since the root was recorded."""
        for path, module in self.recorder.names.modules(root):
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self.parameter_seqs:
                    self._parameter(path, type(module).__name__, name, parameter)

    def record_settings(self) -> None:
        """Emit training flags, optimizer options and scalers; before a step's first forward.

        A step often opens with an evaluation of the model, in eval mode and before the scheduler
        has moved on; what the training will use is known only when it begins.
        """
        if not self.step_settings.recorded:
            self.step_settings.record(self._roots_in_use(), self._in_use_since, self.module_reads)

    def _parameter(self, path: str, kind: str, name: str, parameter: torch.Tensor) -> list[int]:
        place = self._places.get(parameter)
        if place is None:
            place = Place("parameter", path, name, kind)
            self._places.put(parameter, place)
        elif (place.module, place.name) != (path, name):  # Tied: recorded under its first name.
            known = self.parameter_seqs.get(id(parameter))
            return [] if known is None else [known]
        seq = self.recorder.events.emit_standing(
            place.begun, place.standing, parameter, trust=True, follow=True
        )
        if seq is None:
            return []
        self.parameter_seqs[id(parameter)] = seq
        if not parameter.is_inference():
            self._versions.put(parameter, parameter._version)
        return [seq]

    def read_by(self, module: nn.Module, path: str, phase: str) -> list[int]:
        """Return the seqs of the state that a call of a module starts from.

        A closure's optimizer, or one that looks ahead, writes parameters in the middle of a step:
        those are recorded again, as made from what the last backward pass left. What a collective
        writes no version counts: its own event tells.
        """
        reads = self.module_reads.get(path, [])
        for name, parameter in module._parameters.items():
            version = self._versions.get(parameter)
            if parameter is None or version is None:
                continue
            if version != parameter._version:
                self._versions.put(parameter, parameter._version)
                self._rewrite(
                    Point(phase, "rewrite", path, type(module).__name__, 0, name), parameter
                )
            if (seq := self._rewritten.get(id(parameter))) is not None:
                reads = [*reads, seq]
            if self.has_received:
                seq, _ = self.recorder.events.producers.find(parameter, look(parameter))
                if seq is not None and seq > self.parameter_seqs[id(parameter)]:
                    reads = [*reads, seq]
        return reads

    def read_inside(self, path: str) -> list[int]:
        """Return the seqs of the state of all modules inside one."""
        start = f"{path}." if path else ""
        return [
            seq
            for inner, seqs in self.module_reads.items()
            if inner != path and inner.startswith(start)
            for seq in seqs
        ]

    def _rewrite(self, point: Point, parameter: torch.Tensor) -> None:
        recorder = self.recorder
        span = recorder.events.next_seq() - recorder.backward_first_seq
        seq = recorder.events.emit_tensor(
            point, parameter, reads=[self.parameter_seqs[id(parameter)]], span=span
        )
        if seq is not None:
            self._rewritten[id(parameter)] = seq

    def owned(self, parameter: torch.Tensor) -> Place | None:
        """Return the place of a parameter of a known module, or None."""
        return self._places.get(parameter)

    def place(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Place:
        """Return the place of a parameter, or of an optimizer's own tensor."""
        place = self._places.get(parameter) or self._masters.get(parameter)
        if place is None:
            place = Place("master", "", self._name_of_master(optimizer, parameter))
            self._masters.put(parameter, place)
        return place

    def _name_of_master(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> str:
        index = self.discovery.number_of(optimizer)
        for g, group in enumerate(optimizer.param_groups):
            for p, held in enumerate(group["params"]):
                if held is parameter:
                    return f"optimizer{index}.group{g}.{p}"
        return f"optimizer{index}.stray"

    def _record_masters(self, optimizer: torch.optim.Optimizer) -> None:
        """Emit tensors that only the optimizer holds: fp32 copies, flat buffers."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                place = self.place(optimizer, parameter)
                if place.kind == "master":
                    seq = self.recorder.events.emit_tensor(place.begun, parameter)
                    if seq is not None:
                        self.parameter_seqs[id(parameter)] = seq
                        if parameter.requires_grad:
                            self.trained_alone.append(seq)

    def _record_held(self, optimizer: torch.optim.Optimizer) -> None:
        """Emit what the optimizer keeps for each parameter (moments, step counts)."""
        events = self.recorder.events
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # `state` may be a defaultdict: look before reading, so as to add nothing to it.
                entries = optimizer.state.get(parameter)
                if entries is None:
                    continue
                place = self.place(optimizer, parameter)
                seqs = self._held_seqs.setdefault(id(parameter), [])
                for key, point, _, standing in place.kept(entries):
                    seqs += emit_kept(events, point, standing, entries[key])

    def reads_of(self, parameter: torch.Tensor) -> list[int]:
        """Return the seqs of what an update of the parameter starts from in this step."""
        seqs = [
            *self._held_seqs.get(id(parameter), ()),
            *self.step_settings.read_by_update(parameter),
        ]
        if (own := self.parameter_seqs.get(id(parameter))) is not None:
            seqs.append(own)
        return seqs

    def record_updated(self, optimizer: torch.optim.Optimizer, gradients: dict[int, int]) -> None:
        """Emit the parameters and what the optimizer holds, after its step.

        Args:
            optimizer: the one that has stepped.
            gradients: seqs of the gradients it saw, by id of the parameter.
        """
        events = self.recorder.events
        received, first = self.recorder.optimizer.received, None
        if len(received) > MAX_READS:
            received, first = [], received[0]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                reads = self.reads_of(parameter)
                if (gradient := gradients.get(id(parameter))) is not None:
                    reads.append(gradient)
                reads += received
                place = self.place(optimizer, parameter)
                events.emit_standing(
                    place.updated,
                    place.standing,
                    parameter,
                    trust=False,
                    reads=reads,
                    span=0 if first is None else events.next_seq() - first,
                )
                if (entries := optimizer.state.get(parameter)) is not None:
                    for key, _, point, standing in place.kept(entries):
                        emit_kept(events, point, standing, entries[key], reads, first)
