"""Hints, what an attribution rests on, and the command that narrows further."""

import shlex
from typing import Any

from fpdiff.fingerprint.bisect.verdict import Origin
from fpdiff.store.run import Run

_HINTS = {
    "data": "compare the samplers: seed, set_epoch, shuffling, worker seeding, position after"
    " a resume",
    "rng": "find who drew between the last equal state and here: an evaluation pass, an extra"
    " layer at initialisation, a seed or a restore that is missing",
    "environment": "run both with the same setting; if it must differ, expect other bits",
    "structure": "the programs differ here: configuration, a branch, a library's version",
    "metadata": "the programs differ here: batch size, padding, precision or a library's version",
    "collective": "every rank's own gradients are equal: look at the reduction (its groups, the"
    " order of its buckets, the algorithm)",
    "unseen-producer": "something wrote to the tensor's memory: a custom kernel, another stream or"
    " thread, a view through numpy, faulty memory",
    "computation": "run with torch.use_deterministic_algorithms(True); if that raises or helps,"
    " the module uses a nondeterministic kernel",
}
_STATE_HINTS = {
    "parameter": "the weights differ before the step: initialisation or a checkpoint",
    "buffer": "a buffer differs before the step: is it persistent, is it in the checkpoint?",
    "optimizer state": "the optimizer's state differs before the step: was it restored?",
    "master weights": "the optimizer's own copy differs: was it restored with the weights?",
    "param_group option": "an option of the optimizer differs: its construction, or the position"
    " of the scheduler",
    "gradient scaler": "the scaler's state differs: was it restored?",
    "training flag": "train() or eval() was called on one side only",
}


def hint(class_: str, component: str | None) -> str | None:
    """Return what to look at for an origin of a class."""
    if class_ == "state" and component is not None:
        return _STATE_HINTS.get(component.removesuffix(" of a module outside the root"))
    return _HINTS.get(class_)


def strength(rung: str, class_: str, num_inputs: int) -> str:
    """Return what the attribution to an origin rests on."""
    if class_ in ("state", "data"):
        return "compared directly"
    events = "the one event" if num_inputs == 1 else f"all {num_inputs} events"
    if rung == "step":
        return f"{events} before it in the step equal; rung step does not see inside the model"
    return (
        f"{events} it read equal; operations between modules, and tensors that no module was"
        " given (labels, say), are not seen at rung layer"
    )


def next_command(run: Run, rung: str, origins: list[Origin]) -> str | None:
    """Return the command that records a rerun more closely, or None if there is none."""
    settings = run.info["settings"]
    if not origins:
        return None
    first = origins[0]
    options = ["--steps", str(first.step)]
    if rung == "step":
        options += ["--level", "layer"]
    elif first.class_ in ("computation", "environment") and not settings.get("rehash"):
        options += ["--level", "layer", "--rehash", "--stats"]
    else:
        return None
    # A window of ranks keeps the others from writing; they run all the same.
    if len({origin.rank for origin in origins}) == 1 and len(run.ranks) > 1:
        options += ["--ranks", str(first.rank)]
    if settings.get("first_step"):
        options += ["--first-step", str(settings["first_step"])]
    command: list[Any] = run.info["command"]
    words = ["fpdiff", "record", "--out", f"{run.path}.narrow", *options, "--"]
    return shlex.join([*words, *map(str, command)])
