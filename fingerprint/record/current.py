"""The recording of this process, if any, behind the functions that may stay in a script.

Each is one global look-up and a comparison when nothing records.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from fpdiff.fingerprint.record.script import ScriptCalls

script: "ScriptCalls | None" = None


def step(number: int) -> None:
    """Say that step `number` begins here; does nothing when nothing records.

    Without it a step ends with an optimizer's step. After the first call only these calls begin
    steps. Numbers must grow; one that does not is reported and ignored.
    """
    if script is not None:
        script.step(number)


def log(name: str, value: "float | torch.Tensor") -> None:
    """Record a named number of the current step; does nothing when nothing records.

    Args:
        name: the metric's name, as `fpdiff compare` will print it.
        value: a number or a one-element tensor.
    """
    if script is not None:
        script.log(name, value)


def mark(name: str, tensor: "torch.Tensor") -> None:
    """Record the digest of any tensor under a name; does nothing when nothing records.

    Args:
        name: the mark's name, as `fpdiff compare` will print it.
        tensor: any tensor; it is not kept, copied or changed.
    """
    if script is not None:
        script.mark(name, tensor)
