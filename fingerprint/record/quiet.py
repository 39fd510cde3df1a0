"""How a hook looks at tensors without anybody noticing, and what happens when it fails."""

import functools
import sys
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import torch

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.recorder import Recorder

P = ParamSpec("P")

# At hand in each call: to look them up through torch takes half as long as to call them.
_is_compiling = torch.compiler.is_compiling
_tracing_state = torch._C._get_tracing_state
_NoTorchFunction = torch._C.DisableTorchFunction

_dynamo: Any = torch._C._dynamo.eval_frame
_KNOWN = {*sys.stdlib_module_names, "fpdiff", "numpy", "pyarrow", "torch", "triton", "xxhash"}
"""Packages whose errors may come out of what a hook calls."""

_LEAVE_ALONE = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP)


def observing(
    body: Callable[Concatenate[Any, P], None],
    unless: Callable[Concatenate[Any, P], bool] | None = None,
    *,
    is_told: bool = False,
) -> Callable[Concatenate[Any, P], None]:
    """Make a method of an object with a `recorder` attribute fit to be a hook.

    The hook always returns None, since torch takes any other value as a replacement. It does
    nothing while torch compiles or traces (the tests come first and are constants to Dynamo, so
    nothing of the hook is left in compiled code), nor while nothing records. Called by code that
    Dynamo did not compile, between two graphs say, it is no frame to be compiled itself. Inside,
    torch function modes and subclasses are switched off, so no user code sees the hook's own
    look-ups, and the ops that the hook itself runs are not taken for the program's.
    An error of ours stops the recording, never the program; what a signal's handler raises is the
    program's. In a thread that is not followed it does nothing.

    Args:
        body: the method.
        unless: given the same, says quickly whether there is nothing to do.
        is_told: being called in a thread that is not followed is a blind spot.
    """

    @functools.wraps(body)
    def hook(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
        if _is_compiling() or _tracing_state() is not None:
            return
        recorder: Recorder = self.recorder
        if not recorder.awake or (unless is not None and unless(self, *args, **kwargs)):
            return
        if not recorder.follows_thread(is_told=is_told):
            return
        outer, recorder.is_observing = recorder.is_observing, True
        with _NoTorchFunction():
            try:
                body(self, *args, **kwargs)
            except BaseException as error:
                if stop_after(recorder, error):
                    raise
            finally:
                recorder.is_observing = outer

    code: Any = hook
    _dynamo.set_code_exec_strategy(code.__code__, _LEAVE_ALONE)
    return hook  # type: ignore[return-value]  # A method: it takes self.


def stop_after(recorder: "Recorder", error: BaseException) -> bool:
    """Stop the recording, which an error has cut short in a hook.

    Returns:
        Whether a signal's handler has raised it while the hook ran, or another thread has thrown it
        in: then it is the program's own, to be raised on.
    """
    by_signal = (
        not isinstance(error, Exception)
        or _is_of_handler(error.__traceback__)
        or _is_thrown_in(error)
    )
    recorder.fail(error, by_signal=by_signal)
    return by_signal


def _is_of_handler(traceback: TracebackType | None) -> bool:
    """Return whether a function that is given a signal and a frame has raised an error."""
    while traceback is not None:
        code, found = traceback.tb_frame.f_code, traceback.tb_frame.f_locals
        given = [found.get(name) for name in code.co_varnames[: code.co_argcount + 1]]
        given += [part for value in given if isinstance(value, tuple) for part in value]
        if {int, FrameType} <= {int if isinstance(v, int) else type(v) for v in given}:
            return True
        traceback = traceback.tb_next
    return False


def _is_thrown_in(error: Exception) -> bool:
    """Return whether an error of the program's own class was raised by code of ours.

    We do not know the class, so it has been thrown in, as libraries do to end what takes too long.
    """
    if type(error).__module__.partition(".")[0] in _KNOWN:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("fpdiff.")
