"""Everything that a step starts from, and what an optimizer made of its part of it.

At the start of a step: parameters, buffers (non-persistent ones too), what the optimizers hold for
each parameter, generators; before its first training forward: training flags, optimizer options,
gradient scalers. After an optimizer's step: the parameters and what it holds for them, so that the last step of a run is
complete. A tensor that nothing has written since is not digested again.
"""

import json
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.fingerprint.record import generators
from fpdiff.fingerprint.record.containers import tensors_in
from fpdiff.fingerprint.record.discovery import Discovery

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.recorder import Recorder

_FLAG = {flag: digest_bytes(str(flag).encode()) for flag in (True, False)}


class StateRecorder:
    """Emits the state events of a recorder."""

    def __init__(self, recorder: "Recorder") -> None:
        """Start with nothing known."""
        self.recorder = recorder
        self.discovery = Discovery()
        self.module_reads: dict[str, list[int]] = {}
        self.parameter_seqs: dict[int, int] = {}
        self._held_seqs: dict[int, list[int]] = {}
        self._owners: dict[int, tuple[weakref.ref[torch.Tensor], str, str]] = {}
        self._recorded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._settled = False

    def record_tensors(self) -> None:
        """Emit parameters, buffers, optimizer state and generators; when a step opens."""
        recorder = self.recorder
        self.discovery.look(recorder.names)
        self.module_reads.clear()
        self.parameter_seqs.clear()
        self._held_seqs.clear()
        self._recorded.clear()
        self._settled = False
        for root in recorder.names.roots():
            self.record_root(root)
        for index, optimizer in enumerate(self.discovery.optimizers()):
            self._masters(index, optimizer)
            self._held(optimizer, "init")
        for name, digest in generators.states():
            recorder.emit("init", "generator", name, digest)

    def record_root(self, root: nn.Module) -> None:
        """Emit the parameters and buffers of one root, once a step."""
        if root in self._recorded:
            return
        self._recorded.add(root)
        recorder = self.recorder
        for path, module in recorder.names.modules(root):
            if path in self.module_reads:
                continue
            place: dict[str, Any] = {"module": path, "module_class": type(module).__name__}
            reads: list[int] = []
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    reads += self._parameter(path, name, parameter, place)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    seq = recorder.emit_tensor("init", "buffer", name, buffer, **place)
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
        for root in recorder.names.roots():
            for path, module in recorder.names.modules(root):
                digest = _FLAG[bool(module.training)]
                place: dict[str, Any] = {"module": path, "module_class": type(module).__name__}
                seq = recorder.emit("init", "training_flag", "training", digest, **place)
                self.module_reads.setdefault(path, []).append(seq)
        for index, optimizer in enumerate(self.discovery.optimizers()):
            self._options(index, optimizer)
        for index, scaler in enumerate(self.discovery.scalers()):
            self._scaler(index, scaler)

    def _parameter(
        self, path: str, name: str, parameter: torch.Tensor, place: dict[str, Any]
    ) -> list[int]:
        key = id(parameter)
        owner = self._owners.get(key)
        if owner is None or owner[0]() is not parameter:
            self._owners[key] = (weakref.ref(parameter), path, name)
        elif owner[1:] != (path, name):  # Tied: recorded under its first name.
            known = self.parameter_seqs.get(key)
            return [] if known is None else [known]
        seq = self.recorder.emit_tensor("init", "parameter", name, parameter, **place)
        if seq is None:
            return []
        self.parameter_seqs[key] = seq
        return [seq]

    def owner(self, parameter: torch.Tensor) -> tuple[str, str] | None:
        """Return (module path, name) of a parameter of a known module, or None."""
        owner = self._owners.get(id(parameter))
        return owner[1:] if owner is not None and owner[0]() is parameter else None

    def where(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> tuple[str, str]:
        """Return (module path, slot) of a parameter, or of a tensor only the optimizer holds."""
        owner = self.owner(parameter)
        if owner is not None:
            return owner
        index = self.discovery.optimizers().index(optimizer)
        for g, group in enumerate(optimizer.param_groups):
            for p, held in enumerate(group["params"]):
                if held is parameter:
                    return "", f"optimizer{index}.group{g}.{p}"
        return "", f"optimizer{index}.stray"

    def _masters(self, index: int, optimizer: torch.optim.Optimizer) -> None:
        """Emit tensors that only the optimizer holds: fp32 copies, flat buffers."""
        for g, group in enumerate(optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                if self.owner(parameter) is None:
                    slot = f"optimizer{index}.group{g}.{p}"
                    seq = self.recorder.emit_tensor("init", "master", slot, parameter)
                    if seq is not None:
                        self.parameter_seqs[id(parameter)] = seq

    def _held(self, optimizer: torch.optim.Optimizer, phase: str, **reads: Any) -> None:
        """Emit what the optimizer keeps for each parameter (moments, step counts)."""
        for parameter, entries in _held_by(optimizer):
            module, name = self.where(optimizer, parameter)
            seqs = self._held_seqs.setdefault(id(parameter), [])
            for key, value in sorted(entries.items(), key=lambda entry: str(entry[0])):
                place = {"module": module, **reads}
                seqs += self._value(phase, "optimizer_state", f"{name}.{key}", value, place)

    def _value(
        self, phase: str, kind: str, slot: str, value: Any, place: dict[str, Any]
    ) -> list[int]:
        """Emit a tensor, a plain value, or the tensors in a container; return their seqs."""
        recorder = self.recorder
        plain = None if isinstance(value, torch.Tensor) else _plain(value)
        if plain is not None:
            number = float(value) if isinstance(value, (int, float)) else None
            return [recorder.emit(phase, kind, slot, digest_bytes(plain), value=number, **place)]
        seqs = []
        # What an optimizer has just written may have gone past the version counters.
        trust = phase == "init"
        for inner, tensor in tensors_in(value, slot)[0]:
            seqs.append(
                recorder.emit_tensor(phase, kind, inner, tensor, value=True, trust=trust, **place)
            )
        return [seq for seq in seqs if seq is not None]

    def _options(self, index: int, optimizer: torch.optim.Optimizer) -> None:
        for g, group in enumerate(optimizer.param_groups):
            seqs: list[int] = []
            for name, value in group.items():
                if name not in ("params", "param_names"):
                    slot = f"optimizer{index}.group{g}.{name}"
                    seqs += self._value("init", "option", slot, value, {})
            for parameter in group["params"]:
                self._held_seqs.setdefault(id(parameter), []).extend(seqs)

    def _scaler(self, index: int, scaler: torch.amp.GradScaler) -> None:
        for name in ("_scale", "_growth_tracker"):
            value = getattr(scaler, name)
            if value is None:  # Not made before its first use.
                value = getattr(scaler, f"_init{name}")
            slot = f"scaler{index}.{name.lstrip('_')}"
            self._value("init", "scaler", slot, value, {})

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
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                reads = self.reads_of(parameter)
                reads += [gradients[id(parameter)]] if id(parameter) in gradients else []
                module, name = self.where(optimizer, parameter)
                kind = "parameter" if self.owner(parameter) else "master"
                place: dict[str, Any] = {"module": module, "reads": reads}
                self.recorder.emit_tensor("optimizer", kind, name, parameter, trust=False, **place)
                entries = optimizer.state.get(parameter)
                for key, value in sorted((entries or {}).items(), key=lambda e: str(e[0])):
                    self._value("optimizer", "optimizer_state", f"{name}.{key}", value, place)


def _held_by(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, dict[Any, Any]]]:
    # `state` may be a defaultdict: look before reading, so as to add nothing to it.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state:
                yield parameter, optimizer.state[parameter]


def _plain(value: Any) -> bytes | None:
    """Return bytes that are equal for equal plain values; None for what is not plain data."""
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError):
        return None
