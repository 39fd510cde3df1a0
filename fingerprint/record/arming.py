"""Puts the hooks in, and takes them out again."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizer

from fpdiff.fingerprint.record import current
from fpdiff.fingerprint.record.modules import rehearsal
from fpdiff.fingerprint.record.modules.backward import GradientHooks
from fpdiff.fingerprint.record.modules.hooks import ModuleHooks
from fpdiff.fingerprint.record.ops import tritonpath
from fpdiff.fingerprint.record.ops.handles import HandleWatch
from fpdiff.fingerprint.record.ops.inductor import GraphRecorder
from fpdiff.fingerprint.record.ops.kernels import KernelRecorder
from fpdiff.fingerprint.record.ops.mode import OpMode, OpRecorder
from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.script import ScriptCalls
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.record.state.optimizer import OptimizerHooks
from fpdiff.store.errors import RecordError


def arm(settings: Settings) -> Callable[[], None]:
    """Start to watch this process; return the function that ends it.

    What was recorded is also put on disk at the process's orderly end.

    Args:
        settings: what to record; the run's folder has been made.

    Raises:
        RecordError: this process is being recorded already.
    """
    if current.script is not None:
        raise RecordError("this process is being recorded already: end that recording first")
    recorder = Recorder(settings)
    gradients = GradientHooks(recorder)
    modules = ModuleHooks(recorder, gradients)
    optimizers = OptimizerHooks(recorder)
    handles = [
        torch_modules.register_module_forward_pre_hook(modules.before),
        torch_modules.register_module_forward_hook(modules.after, always_call=True),
        torch_optimizer.register_optimizer_step_pre_hook(optimizers.before),
        torch_optimizer.register_optimizer_step_post_hook(optimizers.after),
    ]
    modules_of_torch: Any = torch_modules
    has_any_global_hook = modules_of_torch._has_any_global_hook
    modules_of_torch._has_any_global_hook = _others_than({handle.id for handle in handles})
    autograd: Any = torch.autograd  # The name is private; nothing public says when a pass begins.
    engine = autograd._engine_run_backward
    autograd._engine_run_backward = gradients.watch(engine)
    clipping: Any = clip_grad
    clip = clipping._clip_grads_with_norm_
    clipping._clip_grads_with_norm_ = gradients.watch_clipping(clip)
    script = current.script = ScriptCalls(recorder)
    ops = OpRecorder(recorder, gradients)
    end_ops = _watch_ops(ops) if recorder.collectives else None
    ends = [rehearsal.pause_in(recorder), GraphRecorder(ops, optimizers).watch()]

    def disarm() -> None:
        if end_ops is not None:
            end_ops()
        for end in ends:
            end()
        for handle in handles:
            handle.remove()
        gradients.remove()
        autograd._engine_run_backward = engine
        clipping._clip_grads_with_norm_ = clip
        modules_of_torch._has_any_global_hook = has_any_global_hook
        if current.script is script:
            current.script = None
        recorder.close()

    return disarm


def _watch_ops(ops: OpRecorder) -> Callable[[], None]:
    if not ops.recorder.ops:
        return HandleWatch(ops).watch()
    mode = OpMode(ops)
    mode.__enter__()  # type: ignore[no-untyped-call]
    ends = [tritonpath.watch(KernelRecorder(ops))]
    if ops.recorder.kernels:
        ends.append(ops.recorder.events.device_kernels.watch())

    def end() -> None:
        for end_one in ends:
            end_one()
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    return end


def _others_than(own: set[int]) -> Callable[[], bool]:
    """Return a function that says whether global module hooks exist besides our own.

    Its one caller in torch warns that what torch.compile returns fires them once more. Ours do
    nothing then, so the warning would tell the user nothing, and end a program that turns warnings
    into errors.
    """
    names = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks")
    tables = [getattr(torch_modules, name) for name in (*names, "_global_backward_pre_hooks")]

    def has_others() -> bool:
        return any(key not in own for table in tables for key in table)

    return has_others


def _forget_in_child() -> None:
    """A forked child (a DataLoader worker) shares the parent's files: it must not write."""
    script = current.script
    if script is not None and script.recorder.has_begun():
        script.recorder.awake = False
        script.recorder.events.device_kernels.forget_in_child()
        current.script = None


os.register_at_fork(after_in_child=_forget_in_child)
