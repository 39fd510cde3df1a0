"""One bit flipped below the recorder, as a faulty kernel would, and where a run can be hit."""

import collections
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

import fpdiff
from fpdiff.fingerprint.record import current
from fpdiff.fingerprint.record.ops.mode import has_own_ops

MADE = ("result", "written", "received")


@dataclass(frozen=True)
class Fault:
    """One bit to flip, and what fpdiff must say of it.

    `nth` counts the calls of the op from the rank's first module call on. At the rung `layer`,
    where no ops are recorded, the op is None.
    """

    rank: int
    nth: int
    op: str | None
    kind: str
    slot: str
    step: int
    phase: str
    module: str
    occurrence: int


class Flip(TorchDispatchMode):
    """Flips a bit of the first element of what one call of an op made."""

    def __init__(self, fault: Fault) -> None:
        """Take the fault."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.fault = fault
        self.is_counting = False
        self.calls = 0
        self.landing: dict[int, bool] = {}  # by address, whether to flip a bit there

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an op; if it is the one, flip the bit."""
        for kind in types:
            if kind.__module__.startswith("torch._subclasses"):
                return func(*args, **(kwargs or {}))  # A tracer at work on shapes: not recorded.
            if has_own_ops(kind):
                return NotImplemented  # They come back here on plain tensors.
        result = func(*args, **(kwargs or {}))
        if self._lands(str(func), args):
            return result
        is_counted = self._counts and str(func) == self.fault.op
        if "reduce_scatter" in str(func) or func.namespace == "_c10d_functional":
            output = args[0] if func.namespace == "c10d" else result
            self.landing[output.data_ptr()] = is_counted and self.fault.nth == self.calls
        elif is_counted and self.fault.nth == self.calls:
            flip(_made(func, args, kwargs or {}, result, self.fault))
        self.calls += is_counted
        return result

    @property
    def _counts(self) -> bool:
        """Whether an op that runs now is in the record."""
        script = current.script
        return self.is_counting and script is not None and script.recorder.awake

    def _lands(self, op: str, args: tuple[Any, ...]) -> bool:
        """Return whether an op is the wait for a collective, and flip the bit if it is due."""
        # With gloo, the output of a reduce-scatter is there only after a copy.
        waits = op == "aten.copy_.default" and args[0].data_ptr() in self.landing
        if not waits and not op.startswith("_c10d_functional.wait_tensor"):
            return False
        if self.landing.pop(args[0].data_ptr(), False):
            flip(args[0])
        return True


@contextmanager
def flipping(fault: Fault | None) -> Iterator[None]:
    """Let a fault of this rank happen while the block runs; None for no fault."""
    if fault is None:
        yield
        return
    mode = Flip(fault)

    def begin(*_: Any) -> None:
        mode.is_counting = True

    first_call = register_module_forward_pre_hook(begin)
    try:
        with mode:
            yield
    finally:
        first_call.remove()


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of a tensor's first element, of a weight that rounding does not swallow."""
    # By address, so that no op and no version counter shows it.
    ctypes.c_uint8.from_address(tensor.data_ptr() + 1).value ^= 1


def _made(func: Any, args: tuple[Any, ...], kwargs: Any, result: Any, fault: Fault) -> torch.Tensor:
    """Return the tensor that an event is of."""
    if func.namespace == "c10d":  # Not there before the wait; a test double may wait.
        works = [r for r in (result if isinstance(result, tuple) else (result,)) if _is_work(r)]
        for work in works:
            distributed.Work.unbox(work).wait()
    name, *path = fault.slot.split(".")
    names = [argument.name for argument in func._schema.arguments]
    if fault.kind != "result" and name in names:
        value: Any = (dict(zip(names, args, strict=False)) | kwargs)[name]
    else:
        value = result if isinstance(result, tuple) else (result,)
    for index in path:
        value = value[int(index)]
    assert isinstance(value, torch.Tensor)
    return value


def _is_work(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "Work" in str(value._type())


def places(run: Path) -> list[Fault]:
    """Return every place of a recorded run where a bit can be flipped."""
    found = []
    for rank, record in fpdiff.open_run(run).ranks.items():
        sites = {row["site"]: row for row in record.sites().to_pylist()}
        counts: collections.Counter[str] = collections.Counter()
        nth: dict[tuple[Any, ...], int] = {}
        for step in record.steps()["step"].to_pylist():
            for event in record.events(step).to_pylist():
                site = sites[event["site"]]
                if site["op"] is None or site["kind"] == "uninitialised":
                    continue
                names = ("phase", "module", "call", "op", "members", "occurrence")
                key = (step, event["microbatch"], *(site[name] for name in names))
                if key not in nth:
                    nth[key] = counts[site["op"]]
                    counts[site["op"]] += 1
                # Integers say which bucket is which: another one ends the program.
                is_float = site["dtype"].startswith(("float", "bfloat"))
                if site["kind"] not in MADE or 0 in site["shape"] or not is_float:
                    continue
                found.append(
                    Fault(
                        rank,
                        nth[key],
                        site["op"],
                        site["kind"],
                        site["slot"],
                        step,
                        site["phase"],
                        site["module"],
                        site["occurrence"],
                    )
                )
    return found


def share_of(fault: Fault) -> str:
    """Return the phase of a fault, `collective` in a collective."""
    in_collective = fault.op is not None and fault.op.startswith(("c10d.", "_c10d"))
    return "collective" if in_collective else fault.phase


def judge(a: Path, b: Path, fault: Fault) -> tuple[str, str]:
    """Compare a faulty run with the untouched one; return what came of it, and the details."""
    verdict = fpdiff.compare(a, b)
    if verdict.verdict != "diverged":
        return "missed", verdict.summary
    calls = {
        (o.rank, o.step, o.phase, o.module, o.op, o.call, o.occurrence) for o in verdict.origins
    }
    if len(calls) != 1:
        return "more than one origin", "; ".join(o.summary for o in verdict.origins[:4])
    origin = verdict.origins[0]
    for name in ("rank", "step", "phase", "module", "op", "occurrence"):
        if getattr(origin, name) != getattr(fault, name):
            return f"another {name}", origin.summary
    if share_of(fault) == "collective" and origin.class_ != "collective":
        return "another class", origin.class_
    receivers = {receiver.rank for receiver in verdict.receivers}
    differing = {row.rank for row in verdict.rank_steps} - {fault.rank}
    if receivers != differing:
        return "another receiver", f"{receivers} instead of {differing}"
    return "exact", origin.class_
