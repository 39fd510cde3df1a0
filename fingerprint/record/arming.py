"""Puts the hooks in, and takes them out again."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

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
from fpdiff.fingerprint.record.wrapping import Around
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
    with ExitStack() as ends:
        _put_in(Recorder(settings), ends)
        # What cannot be put in whole, in another torch say, has been taken out by now.
        return ends.pop_all().close


def _put_in(recorder: Recorder, ends: ExitStack) -> None:
    """Put everything in, and leave with `ends` what takes it out."""
    ends.callback(recorder.close)
    gradients = GradientHooks(recorder)
    modules = ModuleHooks(recorder, gradients)
    optimizers = OptimizerHooks(recorder)
    discovery = recorder.state.discovery
    own: set[int] = set()
    hooks: list[tuple[Callable[..., RemovableHandle], Callable[..., None]]] = [
        (torch_modules.register_module_parameter_registration_hook, discovery.note_parameter),
        (torch_modules.register_module_forward_pre_hook, modules.before),
        (partial(torch_modules.register_module_forward_hook, always_call=True), modules.after),
        (torch_optimizer.register_optimizer_step_pre_hook, optimizers.before),
        (torch_optimizer.register_optimizer_step_post_hook, optimizers.after),
    ]
    for register, hook in hooks:
        handle = register(hook)
        ends.callback(handle.remove)
        own.add(handle.id)
    ends.callback(gradients.remove)
    _put_around(torch_modules.Module, "__setstate__", discovery.watch_copies, ends)
    _put_around(torch_modules, "_has_any_global_hook", lambda _: _others_than(own), ends)
    # The name is private; nothing public says when a pass begins.
    _put_around(torch.autograd, "_engine_run_backward", gradients.watch, ends)
    _put_around(clip_grad, "_clip_grads_with_norm_", gradients.watch_clipping, ends)
    script = ScriptCalls(recorder)
    ends.callback(_forget, script)
    current.script = script
    ops = OpRecorder(recorder, gradients)
    if recorder.collectives:
        _watch_ops(ops, ends)
    ends.callback(rehearsal.pause_in(recorder))
    ends.callback(GraphRecorder(ops, optimizers).watch())


def _put_around(holder: Any, name: str, around: Around, ends: ExitStack) -> None:
    original = getattr(holder, name)
    ends.callback(setattr, holder, name, original)
    setattr(holder, name, around(original))


def _forget(script: ScriptCalls) -> None:
    if current.script is script:
        current.script = None


def _watch_ops(ops: OpRecorder, ends: ExitStack) -> None:
    if not ops.recorder.ops:
        ends.callback(HandleWatch(ops).watch())
        return
    ends.enter_context(OpMode(ops))
    ends.callback(tritonpath.watch(KernelRecorder(ops)))
    if ops.recorder.kernels:
        ends.callback(ops.recorder.events.device_kernels.watch())


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
