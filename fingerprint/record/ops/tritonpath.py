"""Where Triton launches a kernel, and how the recorder gets there.

Compiled or interpreted, every launch ends in the method `run` of what `triton.jit` has made: a
`JITFunction` or an `InterpretedFunction`. Autotuners and heuristics call it too, with the constants
that they chose. So `run` is wrapped on these two classes: that shows the arguments by name, before
and after, for kernels made earlier and later alike, and is undone by putting it back. Triton's own
launch hooks would not do: the interpreter does not fire them, and they are not given the arguments.
The hooks that a kernel can be given fire before it only, and would stay in the program's objects.
"""

import functools
from collections.abc import Callable
from typing import Any

from fpdiff.fingerprint.record.ops.kernels import KernelRecorder
from fpdiff.fingerprint.record.wrapping import wrap


def watch(kernels: KernelRecorder) -> Callable[[], None]:
    """Show a recorder every launch from now on; return the function that ends it."""
    run, trial = functools.partial(_run, kernels), functools.partial(_try, kernels)
    return wrap(
        {
            "triton.runtime.jit": [("JITFunction", "run", run)],
            "triton.runtime.interpreter": [("InterpretedFunction", "run", run)],
            "triton.runtime.autotuner": [("Autotuner", "_bench", trial)],
        }
    )


def _run(kernels: KernelRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel's `run` that is recorded."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kernels.launch(original, self, args, kwargs)

    return run


def _try(kernels: KernelRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an autotuner's trial of one configuration that is kept out of the record."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kernels.tune(original, self, args, kwargs)

    return run
