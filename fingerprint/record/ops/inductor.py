"""Code that inductor has compiled.

Most of its kernels are its own and run past the dispatcher; of those that it borrows from torch it
is not known what they read. So the whole of it is one opaque site, at rung op as at those above.
"""

import functools
from collections.abc import Callable
from typing import Any

from fpdiff.fingerprint.record.recorder import Recorder
from fpdiff.fingerprint.record.wrapping import wrap


def look_away(recorder: Recorder) -> Callable[[], None]:
    """Record no operators inside compiled code from now on; return the function that ends it."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not (recorder.has_begun() and recorder.awake and recorder.follows_thread()):
                return original(*args, **kwargs)
            recorder.blind_spots["compiled code: its operators and kernels"] += 1
            outer, recorder.is_observing = recorder.is_observing, True
            try:
                return original(*args, **kwargs)
            finally:
                recorder.is_observing = outer

        return run

    return wrap({"torch._inductor.output_code": [("CompiledFxGraph", "__call__", around)]})
