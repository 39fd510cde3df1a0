"""Everything that a step starts from, and what an optimizer made of its part of it.

At the start of a step: parameters, buffers (non-persistent ones too), what the optimizers hold for
each parameter, generators; before its first training forward: training flags, optimizer options,
gradient scalers. After an optimizer's step: the parameters and what it holds for them, so that the last step of a run is
complete. A tensor that nothing has written since is not digested again.
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from fpdiff.fingerprint.digest.host import digest_bytes, scalar
from fpdiff.fingerprint.record import generators
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.identity import IdentityTable
from fpdiff.fingerprint.record.modules.containers import tensors_in
from fpdiff.fingerprint.record.modules.scopes import MAX_READS
from fpdiff.fingerprint.record.state.discovery import Discovery
from fpdiff.fingerprint.record.state.standing import Standing

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.recorder import Recorder


@dataclass(slots=True)
class Place:
    """What a tensor that an optimizer updates is called, and the points of its events.

    They are made once, not in each step: an event of the state costs little else.

    Attributes:
        kind: "parameter", or "master" for a tensor that only the optimizer holds.
        module: path of the module that it is a parameter of.
        name: its name there.
        begun: at the start of the step.
        updated: after the optimizer's step; `reduced_gradient` of its gradient before it.
    """

    kind: str
    module: str
    name: str
    module_class: str = ""
    standing: Standing = field(default_factory=Standing)
    begun: Point = field(init=False)
    updated: Point = field(init=False)
    reduced_gradient: Point = field(init=False)
    local_gradient: Point = field(init=False)
    _keys: tuple[Any, ...] = ()
    _kept: "list[_Kept]" = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the points."""
        module, name = self.module, self.name
        self.begun = Point("init", self.kind, module, self.module_class, 0, name)
        self.updated = Point("optimizer", self.kind, module, "", 0, name)
        slot = f"grad.{name}"
        self.reduced_gradient = Point("optimizer", "reduced_gradient", module, "", 0, slot)
        self.local_gradient = Point("backward", "local_gradient", module, "", 0, slot)

    def kept(self, entries: Mapping[Any, Any]) -> "list[_Kept]":
        """Return what an optimizer keeps for the tensor, in an order that is the same in any run.

        Args:
            entries: the optimizer's own, which a checkpoint may have brought in another order.
        """
        keys = tuple(entries)
        if keys != self._keys:
            self._keys = keys
            self._kept = [self._entry(key) for key in sorted(keys, key=str)]
        return self._kept

    def _entry(self, key: Any) -> "_Kept":
        slot = f"{self.name}.{key}"
        begun, updated = (
            Point(phase, "optimizer_state", self.module, "", 0, slot)
            for phase in ("init", "optimizer")
        )
        return _Kept(key, begun, updated, Standing())


class _Kept(NamedTuple):
    """An entry of an optimizer's state and its points."""

    key: Any
    begun: Point
    updated: Point
    standing: Standing


_FLAG = {flag: digest_bytes(str(flag).encode()) for flag in (True, False)}


class StateRecorder:
    """Emits the state events of a recorder."""

    def __init__(self, recorder: "Recorder") -> None:
        """Start with nothing known."""
        self.recorder = recorder
        self.discovery = Discovery()
        self.module_reads: dict[str, list[int]] = {}
        self.parameter_seqs: dict[int, int] = {}
        self.scaler_seqs: list[int] = []
        self._held_seqs: dict[int, list[int]] = {}
        self._option_seqs: dict[int, list[int]] = {}  # by number of the optimizer
        # By (number of the optimizer, of the group) and name: what an option was, and its seqs.
        self._options_known: dict[tuple[int, int], dict[str, tuple[Any, list[int]]]] = {}
        self._recorded: set[int] = set()  # ids of roots, which live as long as the step opens
        self._settled = False
        self._called: IdentityTable[int] = IdentityTable()  # the last step of a root
        self._last_step = -1
        self._in_use_since = 0
        self._places: IdentityTable[Place] = IdentityTable()
        self._masters: IdentityTable[Place] = IdentityTable()
        self._versions: IdentityTable[int] = IdentityTable()  # of parameters, when recorded
        self._rewritten: dict[int, int] = {}  # seqs of those that the step has written since

    def record_tensors(self) -> None:
        """Emit parameters, buffers, optimizer state and generators; when a step opens."""
        recorder = self.recorder
        self.discovery.look(recorder.names)
        self.module_reads.clear()
        self.parameter_seqs.clear()
        self.scaler_seqs.clear()
        self._held_seqs.clear()
        self._option_seqs.clear()
        self._options_known.clear()
        self._masters.clear()  # They are named by their place among others.
        self._recorded.clear()
        self._versions.clear()
        self._rewritten.clear()
        self._settled = False
        for root in self._roots_in_use():
            self.record_root(root)
        for _, optimizer in self.discovery.optimizers(self._in_use_since):
            self._record_masters(optimizer)
            self._record_held(optimizer)
        for name, digest in generators.states():
            recorder.emit(Point("init", "generator", "", "", 0, name), digest)

    def note_call(self, root: nn.Module, step: int) -> None:
        """Note that a root was called in a step.

        A root that was not called in the step before begins something new: what was in use until
        then no longer is.
        """
        before = self._called.get(root)
        if step != self._last_step:
            self._last_step = step
            self._in_use_since = step if before is None or before < step - 1 else step - 1
        self._called.put(root, step)

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
        if id(root) in self._recorded:
            return
        self._recorded.add(id(root))
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
                    seq = recorder.emit_tensor(point, buffer)
                    reads += [] if seq is None else [seq]
            self.module_reads[path] = reads

    def record_settings(self) -> None:
        """Emit training flags, optimizer options and scalers; before a step's first forward.

        A step often opens with an evaluation of the model, in eval mode and before the scheduler
        has moved on; what the training will use is known only when it begins.
        """
        if self._settled:
            return
        self._settled = True
        recorder = self.recorder
        for root in self._roots_in_use():
            for path, module in recorder.names.modules(root):
                kind = type(module).__name__
                point = Point("init", "training_flag", path, kind, 0, "training")
                seq = recorder.emit(point, _FLAG[bool(module.training)])
                self.module_reads.setdefault(path, []).append(seq)
        for index, optimizer in self.discovery.optimizers(self._in_use_since):
            self._options(index, optimizer)
        for index, scaler in enumerate(self.discovery.scalers()):
            self._scaler(index, scaler)

    def _parameter(self, path: str, kind: str, name: str, parameter: torch.Tensor) -> list[int]:
        place = self._places.get(parameter)
        if place is None:
            place = Place("parameter", path, name, kind)
            self._places.put(parameter, place)
        elif (place.module, place.name) != (path, name):  # Tied: recorded under its first name.
            known = self.parameter_seqs.get(id(parameter))
            return [] if known is None else [known]
        seq = self.recorder.emit_standing(
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
        those are recorded again, as made from what the last backward pass left.
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
        return reads

    def _rewrite(self, point: Point, parameter: torch.Tensor) -> None:
        recorder = self.recorder
        span = recorder.next_seq() - recorder.backward_first_seq
        seq = recorder.emit_tensor(
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
                    seq = self.recorder.emit_tensor(place.begun, parameter)
                    if seq is not None:
                        self.parameter_seqs[id(parameter)] = seq

    def _record_held(self, optimizer: torch.optim.Optimizer) -> None:
        """Emit what the optimizer keeps for each parameter (moments, step counts)."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # `state` may be a defaultdict: look before reading, so as to add nothing to it.
                entries = optimizer.state.get(parameter)
                if entries is None:
                    continue
                place = self.place(optimizer, parameter)
                seqs = self._held_seqs.setdefault(id(parameter), [])
                for key, point, _, standing in place.kept(entries):
                    seqs += self._kept(point, standing, entries[key])

    def _kept(
        self,
        point: Point,
        standing: Standing,
        value: Any,
        reads: Sequence[int] = (),
        first: int | None = None,
    ) -> list[int]:
        """Emit what an optimizer keeps for a parameter, as `_value` does."""
        if not isinstance(value, torch.Tensor):
            return self._value(point, value, reads, first)
        recorder = self.recorder
        seq = recorder.emit_standing(
            point,
            standing,
            value,
            trust=point.phase == "init",  # As in `_tensor`.
            reads=reads,
            span=0 if first is None else recorder.next_seq() - first,
        )
        return [] if seq is None else [seq]

    def _value(
        self, point: Point, value: Any, reads: Sequence[int] = (), first: int | None = None
    ) -> list[int]:
        """Emit a tensor, a plain value, or the tensors in a container; return their seqs.

        They have read `reads`, and everything since the event `first`.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(point, value, reads, first)
        plain = _plain(value)
        if plain is not None:
            number = float(value) if isinstance(value, (int, float)) else None
            return [self.recorder.emit(point, digest_bytes(plain), value=number, reads=reads)]
        seqs = []
        for slot, tensor in tensors_in(value, point.slot)[0]:
            seqs += self._tensor(point._replace(slot=slot), tensor, reads, first)
        return seqs

    def _tensor(
        self, point: Point, tensor: torch.Tensor, reads: Sequence[int], first: int | None
    ) -> list[int]:
        """Emit a tensor of an optimizer or a scaler; return its seq, if its bytes can be read."""
        recorder = self.recorder
        seq = recorder.emit_tensor(
            point,
            tensor,
            # What an optimizer has just written may have gone past the version counters.
            trust=point.phase == "init",
            value=point.kind != "optimizer_state",
            follow=False,
            reads=reads,
            span=0 if first is None else recorder.next_seq() - first,
        )
        return [] if seq is None else [seq]

    def _options(self, index: int, optimizer: torch.optim.Optimizer) -> None:
        for g, group in enumerate(optimizer.param_groups):
            known = self._options_known[index, g] = {}
            # Sorted: a group that was loaded from a checkpoint may list its options otherwise.
            for name in sorted(group):
                if name not in ("params", "param_names"):
                    slot = f"optimizer{index}.group{g}.{name}"
                    own = self._value(Point("init", "option", "", "", 0, slot), group[name])
                    known[name] = _mark(group[name]), own
            self._read_by_updates(index, group, [seq for _, own in known.values() for seq in own])

    def record_changed_options(self, optimizer: torch.optim.Optimizer) -> None:
        """Emit the options that the program has set since the step recorded them."""
        index = self.discovery.number_of(optimizer)
        for g, group in enumerate(optimizer.param_groups):
            known = self._options_known.get((index, g), {})
            for name, (mark, before) in known.items():
                value = group.get(name)
                if (now := _mark(value)) != mark:
                    slot = f"optimizer{index}.group{g}.{name}"
                    own = self._value(Point("optimizer", "option", "", "", 0, slot), value, before)
                    known[name] = now, own
                    self._read_by_updates(index, group, own)

    def _read_by_updates(self, index: int, group: dict[str, Any], seqs: list[int]) -> None:
        self._option_seqs.setdefault(index, []).extend(seqs)
        for parameter in group["params"]:
            self._held_seqs.setdefault(id(parameter), []).extend(seqs)

    def _scaler(self, index: int, scaler: torch.amp.GradScaler) -> None:
        for name, dtype in (("_scale", torch.float32), ("_growth_tracker", torch.int32)):
            value = getattr(scaler, name)
            point = Point("init", "scaler", "", "", 0, f"scaler{index}.{name.lstrip('_')}")
            if value is not None:
                self.scaler_seqs += self._value(point, value)
                continue
            # Its tensors are made at its first use, also of one that was restored.
            number = getattr(scaler, f"_init{name}")
            content = array("f" if dtype is torch.float32 else "i", [number]).tobytes()
            seq = self.recorder.emit(
                point,
                digest_bytes(content),
                dtype=dtype,
                shape=torch.Size(()),
                value=float(number),
            )
            self.scaler_seqs.append(seq)

    def options_of(self, optimizer: torch.optim.Optimizer) -> list[int]:
        """Return the seqs of an optimizer's options in this step."""
        return self._option_seqs.get(self.discovery.number_of(optimizer), [])

    def reads_of(self, parameter: torch.Tensor) -> list[int]:
        """Return the seqs of what an update of the parameter starts from in this step."""
        seqs = list(self._held_seqs.get(id(parameter), ()))
        if (own := self.parameter_seqs.get(id(parameter))) is not None:
            seqs.append(own)
        return seqs

    def record_updated(self, optimizer: torch.optim.Optimizer, gradients: dict[int, int]) -> None:
        """Emit the parameters and what the optimizer holds, after its step.

        Args:
            optimizer: the one that has stepped.
            gradients: seqs of the gradients it saw, by id of the parameter.
        """
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
                self.recorder.emit_standing(
                    place.updated,
                    place.standing,
                    parameter,
                    trust=False,
                    reads=reads,
                    span=0 if first is None else self.recorder.next_seq() - first,
                )
                if (entries := optimizer.state.get(parameter)) is not None:
                    for key, _, point, standing in place.kept(entries):
                        self._kept(point, standing, entries[key], reads, first)


def _mark(value: Any) -> Any:
    """Return what tells whether an option is what it was, at the cost of a comparison."""
    if isinstance(value, (tuple, list)):
        return [_mark(entry) for entry in value]
    if not isinstance(value, torch.Tensor):
        return value if value is None or isinstance(value, (float, int, str)) else _plain(value)
    # A device is not asked for its number: that would wait.
    number = scalar(value) if value.is_cpu else None
    if number is not None or value.is_inference():
        return number
    return id(value), value._version


def _plain(value: Any) -> bytes | None:
    """Return bytes that are equal for equal plain values; None for what is not plain data."""
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError):
        return None
