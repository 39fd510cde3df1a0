"""What a step was set to: training flags, optimizer options, gradient scalers.

They are recorded before the step's first training forward; options also when an optimizer steps,
where the program has set them since.
"""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fpdiff.fingerprint.digest.host import digest_bytes, scalar
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.state.discovery import Discovery
from fpdiff.fingerprint.record.state.values import emit_value, plain_bytes

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.recorder import Recorder

_FLAG = {flag: digest_bytes(str(flag).encode()) for flag in (True, False)}


class StepSettings:
    """Emits the settings of the open step.

    Attributes:
        recorded: whether they have been in this step.
        scaler_seqs: seqs of what the gradient scalers hold.
    """

    def __init__(self, recorder: "Recorder", discovery: Discovery) -> None:
        """Start with nothing recorded."""
        self.recorder = recorder
        self.discovery = discovery
        self.recorded = False
        self.scaler_seqs: list[int] = []
        self._seqs_of: dict[int, list[int]] = {}  # of options, by number of the optimizer
        self._read_by: dict[int, list[int]] = {}  # of options, by id of the parameter
        # By (number of the optimizer, of the group) and name: what an option was, and its seqs.
        self._options_known: dict[tuple[int, int], dict[str, tuple[Any, list[int]]]] = {}
        self._num_scalers = 0

    def clear(self) -> None:
        """Forget those of the step before; when a step opens."""
        self.recorded = False
        self.scaler_seqs.clear()
        self._seqs_of.clear()
        self._read_by.clear()
        self._options_known.clear()
        self._num_scalers = 0

    def record(
        self, roots: Iterable[nn.Module], since: int, module_reads: dict[str, list[int]]
    ) -> None:
        """Emit training flags, optimizer options and scalers.

        Args:
            roots: those in use.
            since: step since which an optimizer that is in use has stepped.
            module_reads: by path, the seqs that a call of a module reads; its flag's is added.
        """
        self.recorded = True
        recorder = self.recorder
        for root in roots:
            parts = list(recorder.names.modules(root))
            for path, module in parts:
                kind = type(module).__name__
                point = Point("init", "training_flag", path, kind, 0, "training")
                training = bool(module.training)
                seq = recorder.events.emit(point, _FLAG[training], value=float(training))
                module_reads.setdefault(path, []).append(seq)
            self._frozen(parts)
        self.record_found(since)

    def _frozen(self, parts: list[tuple[str, nn.Module]]) -> None:
        """Emit which parameters of a root require no gradient, and how many they are."""
        own = [(path, *entry) for path, module in parts for entry in module._parameters.items()]
        if not any(parameter is not None for *_, parameter in own):
            return
        frozen = [
            f"{path}.{name}\n"
            for path, name, parameter in own
            if parameter is not None and not parameter.requires_grad
        ]
        path, root = parts[0]
        point = Point("init", "training_flag", path, type(root).__name__, 0, "requires_grad")
        digest = digest_bytes("".join(frozen).encode())
        self.recorder.events.emit(point, digest, value=float(len(frozen)))

    def record_found(self, since: int) -> None:
        """Emit the options and scalers found since they were recorded; see `record`."""
        for index, optimizer in self.discovery.optimizers(since):
            if (index, 0) not in self._options_known:
                self._options(index, optimizer)
        for index, scaler in enumerate(self.discovery.scalers()):
            if index >= self._num_scalers:
                self._scaler(index, scaler)
                self._num_scalers = index + 1

    def record_changed_options(self, optimizer: torch.optim.Optimizer) -> None:
        """Emit the options that the program has set since the step recorded them."""
        index = self.discovery.number_of(optimizer)
        for g, group in enumerate(optimizer.param_groups):
            known = self._options_known.get((index, g), {})
            for name, (mark, before) in known.items():
                value = group.get(name)
                if (now := _mark(value)) != mark:
                    slot = f"optimizer{index}.group{g}.{name}"
                    point = Point("optimizer", "option", "", "", 0, slot)
                    own = emit_value(self.recorder.events, point, value, before)
                    known[name] = now, own
                    self._read_by_updates(index, group, own)

    def options_of(self, optimizer: torch.optim.Optimizer) -> list[int]:
        """Return the seqs of an optimizer's options in this step."""
        return self._seqs_of.get(self.discovery.number_of(optimizer), [])

    def read_by_update(self, parameter: torch.Tensor) -> list[int]:
        """Return the seqs of the options that an update of the parameter reads."""
        return self._read_by.get(id(parameter), [])

    def _options(self, index: int, optimizer: torch.optim.Optimizer) -> None:
        for g, group in enumerate(optimizer.param_groups):
            known = self._options_known[index, g] = {}
            # Sorted: a group that was loaded from a checkpoint may list its options otherwise.
            for name in sorted(group):
                if name not in ("params", "param_names"):
                    slot = f"optimizer{index}.group{g}.{name}"
                    point = Point("init", "option", "", "", 0, slot)
                    own = emit_value(self.recorder.events, point, group[name])
                    known[name] = _mark(group[name]), own
            self._read_by_updates(index, group, [seq for _, own in known.values() for seq in own])

    def _read_by_updates(self, index: int, group: dict[str, Any], seqs: list[int]) -> None:
        self._seqs_of.setdefault(index, []).extend(seqs)
        for parameter in group["params"]:
            self._read_by.setdefault(id(parameter), []).extend(seqs)

    def _scaler(self, index: int, scaler: torch.amp.GradScaler) -> None:
        for name, dtype in (("_scale", torch.float32), ("_growth_tracker", torch.int32)):
            value = getattr(scaler, name)
            point = Point("init", "scaler", "", "", 0, f"scaler{index}.{name.lstrip('_')}")
            if value is not None:
                self.scaler_seqs += emit_value(self.recorder.events, point, value)
                continue
            # Its tensors are made at its first use, also of one that was restored.
            number = getattr(scaler, f"_init{name}")
            content = array("f" if dtype is torch.float32 else "i", [number]).tobytes()
            seq = self.recorder.events.emit(
                point,
                digest_bytes(content),
                dtype=dtype,
                shape=torch.Size(()),
                value=float(number),
            )
            self.scaler_seqs.append(seq)


def _mark(value: Any) -> Any:
    """Return what tells whether an option is what it was, at the cost of a comparison."""
    if isinstance(value, (tuple, list)):
        return [_mark(entry) for entry in value]
    if value is None or isinstance(value, (float, int, str)):
        return value
    if not isinstance(value, torch.Tensor):
        return plain_bytes(value)
    # A device is not asked for its number: that would wait.
    number = scalar(value) if value.is_cpu else None
    if number is not None or value.is_inference():
        return number
    return id(value), value._version
