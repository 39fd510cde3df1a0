"""How a hook looks at tensors without anybody noticing, and what happens when it fails."""

import functools
from collections.abc import Callable
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
_LEAVE_ALONE = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP)


def observing(
    body: Callable[Concatenate[Any, P], None],
    unless: Callable[Concatenate[Any, P], bool] | None = None,
) -> Callable[Concatenate[Any, P], None]:
    """Make a method of an object with a `recorder` attribute fit to be a hook.

    The hook always returns None, since torch takes any other value as a replacement. It does
    nothing while torch compiles or traces (the tests come first and are constants to Dynamo, so
    nothing of the hook is left in compiled code), nor while nothing records. Called by code that
    Dynamo did not compile, between two graphs say, it is no frame to be compiled itself. Inside,
    torch function modes and subclasses are switched off, so no user code sees the hook's own
    look-ups, and the ops that the hook itself runs are not taken for the program's.
    An error of ours stops the recording, never the program.

    Args:
        body: the method.
        unless: given the same, says quickly whether there is nothing to do.
    """

    @functools.wraps(body)
    def hook(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
        if _is_compiling() or _tracing_state() is not None:
            return
        recorder: Recorder = self.recorder
        if not recorder.awake or (unless is not None and unless(self, *args, **kwargs)):
            return
        outer, recorder.is_observing = recorder.is_observing, True
        with _NoTorchFunction():
            try:
                body(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  # Whatever it is, the program goes on.
                recorder.fail(error)
            finally:
                recorder.is_observing = outer

    code: Any = hook
    _dynamo.set_code_exec_strategy(code.__code__, _LEAVE_ALONE)
    return hook  # type: ignore[return-value]  # A method: it takes self.
