"""Hints, what an attribution rests on, and the command that narrows further."""

import shlex
from typing import Any

from fpdiff.fingerprint.bisect.classify import OUTSIDE
from fpdiff.fingerprint.bisect.preflight import OP_RUNGS
from fpdiff.fingerprint.bisect.verdict import Origin
from fpdiff.fingerprint.catalogue import UNSEEN_LAUNCH, base_name, is_launch, nondeterminism
from fpdiff.store.run import RankRecord, Run
from fpdiff.store.schema import DIGEST_ALGORITHM

_NEXT = {"step": "layer", "layer": "op", "op": "op", "kernel": "kernel"}

_HINTS = {
    "data": "compare the samplers (seed, set_epoch, shuffling, worker seeding, position after a"
    " resume) and what makes tensors of samples (augmentation, a vocabulary, the order of a set)",
    "rng": "find who drew between the last equal state and here: an evaluation pass, an extra"
    " layer at initialisation, a seed or a restore that is missing",
    "environment": "run both with the same setting; if it must differ, expect other bits",
    "structure": "the programs differ here: configuration, a branch, a library's version",
    "metadata": "the programs differ here: batch size, padding, precision or a library's version",
    "collective": "look at the reduction: its groups, the order of its buckets, the algorithm",
    "unseen-producer": "something wrote to the tensor's memory: a custom kernel, another stream or"
    " thread, a view through numpy, faulty memory",
    "arguments": "what the program gives beside tensors differs: an option, or a number that it"
    " computed outside of torch (a scale, a learning rate, an index)",
    "uninitialised": "initialise the memory (zeros, full) or write all of it before it is read;"
    " torch.utils.deterministic.fill_uninitialized_memory finds such reads",
    "kernel": "run both with torch.use_deterministic_algorithms(True)",
    "computation": "run with torch.use_deterministic_algorithms(True); if that raises or helps,"
    " the module uses a nondeterministic kernel; if not, compare its settings and its code",
}
_UPDATE = (
    "the optimizer's options are equal: compare its code, and what it keeps beside its options and"
    " its state; the rung op records what it computes with"
)
_AT_LAYER = {
    "loss": "compare what the loss is made with beside the model's output: labels, weights, a"
    " scale; the rung op records that",
    "local_gradient": "compare what .grad held before this pass (zero_grad, a reduction that came"
    " too early) and hooks on the parameter; if they are equal, run with"
    " torch.use_deterministic_algorithms(True)",
    "rewrite": "something writes the parameter in the middle of the step, a closure or a search for"
    " a sharper place of the loss say: compare by how much; the rung op records that",
    "parameter": _UPDATE,
    "master": _UPDATE,
    "sent": "compare what the program makes and gives to the collective: the rung op records that",
    "reduced_gradient": "something changed the gradient after the backward pass: clipping,"
    " unscaling, a hook; the rung op records that",
}
"""For what is computed outside of modules, which the rung layer does not record."""

_REDUCED_OR_CHANGED = (
    "look at what changes gradients on all ranks after the backward pass (clipping, unscaling, a"
    " hook), which the rung op records, then at the reduction: its groups, the order of its"
    " buckets, the algorithm, a communication hook"
)
"""For a gradient that is another one on several ranks where their optimizers got it."""

_OF_PASSES = {
    "eval": "only one run ran the model without gradients here, and what that left was read later:"
    " a batch norm's averages in training mode, a cache",
    "recompute": "the runs recompute activations otherwise, or only one does: compare what is"
    " checkpointed, and under what (autocast, generators, hooks)",
}
"""For a structure that differs in a pass which is not the training's forward."""

_SET_LATE = (
    "something sets an option of the optimizer after the forward: a scheduler that steps before the"
    " optimizer, a rate scaled by hand"
)
_NOT_OF_TORCH = (
    "no operator that was recorded made it: numpy, a number of the program's or a file did, what"
    " ran before a model was first called, or memory that nobody wrote (np.empty); compare what it"
    " is made from, and the samplers if it is part of a batch"
)
_COLLECTIVES = ("c10d.", "_c10d_functional.")
_EXCHANGED = (
    "the runs exchange other tensors here, or only one does: compare no_sync, parameters that no"
    " loss uses, and how the model is wrapped (find_unused_parameters, static_graph, buckets,"
    " resharding, a communication hook)"
)
_WENT_BACK = (
    "only one run's gradients go back through this collective: compare what is gathered or reduced"
    " with its gradient (torch.distributed.nn, a function of autograd's, layouts of distributed"
    " tensors) and what is detached"
)
_CALLED = (
    "only one run calls this collective, or calls it among these ranks: compare its group, a branch"
    " that decides on it, how often the program comes here, and how the model is wrapped"
)
_OF_OTHER_FORM = (
    "the runs exchange tensors of another dtype or size here: compare the communication hook, the"
    " dtype of reductions, and how the model is wrapped (buckets, shards)"
)
_GIVEN = (
    "compare what the program makes before it gives this to the collective: the rung op records"
    " that"
)
_TRAINED = (
    "only one run trains this parameter here: compare requires_grad, what is frozen or detached,"
    " whether the loss depends on it, and zero_grad(set_to_none=False), which leaves zeros for the"
    " optimizer"
)
ELSEWHERE = (
    "both runs train this parameter, and its gradient is whole at another point of the backward:"
    " compare what the passes go back through (create_graph, detach, the forwards that a loss is"
    " made with)"
)
"""The hint for a gradient of a parameter that the other run has in another microbatch."""
_IN_OPTIMIZER = (
    "the optimizer works otherwise on the parameter: compare its options, which of its groups the"
    " parameter is in, and what it holds for it"
)
_ADDED_TO = "only one run had a gradient left to add to: compare zero_grad and set_to_none"
_STATE_HINTS = {
    "parameter": "the weights differ before the step: initialisation or a checkpoint",
    "buffer": "a buffer differs before the step: is it persistent, is it in the checkpoint?",
    "optimizer state": "the optimizer's state differs before the step: was it restored?",
    "master weights": "a tensor that the optimizer holds and no module does, a copy of a weight or"
    " a parameter by itself, differs: was it restored with the weights, and who else writes it?",
    "param_group option": "an option of the optimizer differs: its construction, or the position"
    " of the scheduler",
    "gradient scaler": "the scaler's state differs: was it restored?",
    "training flag": "train() or eval() was called on one side only",
    "requires_grad": "compare what is frozen, and when (the value counts these parameters): a"
    " phase, an adapter, requires_grad_(False), a checkpoint's loader",
}

_GROUP_HINTS = {
    "training flag": "train() or eval() was called on the whole model in one run only",
    "parameter": "the runs start from other weights: the seed, what is drawn before or in"
    " initialisation, or the checkpoint",
}
"""For a component of the state that differs as a whole."""


_MOVED = {
    "optimizer": "the optimizer goes through its parameters in another order: compare how its"
    " groups are made; what it was restored with goes by that order",
    "generator": "the runs draw random numbers in another order",
}
"""By phase or by kind, for what comes at another place of the step."""


BY_MICROBATCHES = (
    "the step's number of microbatches differs: what is divided by that number differs too"
)
"""The hint for a loss, or a scalar, beside microbatches that only one run has."""

OF_MICROBATCHES = (
    "compare how many forwards an optimizer's step follows: accumulation, a skipped step, a last"
    " batch"
)
"""The hint for microbatches that only one run has."""

OF_ROOTS = "compare the order in which the programs call their models, or train them"
"""The hint for another root."""

BETWEEN_STEPS = (
    "it was equal as long as steps compared equal: something wrote it since, past the optimizer, or"
    " in one run only: an average or a broadcast over ranks, a checkpoint that is loaded, a cast"
)
"""The hint for a tensor that a step starts from, after equal steps."""

BY_SHAPE = "the batch has another shape or dtype: the sizes of what is made from it follow"
"""The hint for other shapes, and other arguments, beside a batch of another shape or dtype."""


_MAY_BE_A_LAUNCH = {"kernel", "computation", "environment", "uninitialised", "unseen-producer"}
"""Classes of origins at the rung op that a kernel which no operator shows may be behind."""


def hint(
    class_: str,
    component: str | None,
    op: str | None = None,
    *,
    kind: str = "",
    phase: str = "",
    rung: str = "",
    has_line: bool = False,
    rehashed: bool = False,
    on_cpu: bool = False,
) -> str | None:
    """Return what to look at for an origin.

    Args:
        class_: its class, and component of the state.
        component: see `class_`.
        op: its operator, if the rung has it.
        kind: of its event, and phase.
        phase: see `kind`.
        rung: what was compared.
        has_line: the program's line is known, in the backward that of the forward.
        rehashed: what the op read was digested again just before.
        on_cpu: no other device was used.
    """
    if class_ in ("kernel", "collective") and op is not None:
        return _about(op, rehashed=rehashed, on_cpu=on_cpu)
    if class_ == "arguments" and op is not None and is_launch(op):
        return (
            "a scalar or a constant of the launch differs: a size, what an autotuner chose by its"
            " timings, the number of warps"
        )
    if class_ == "state" and component is not None:
        if component.endswith(OUTSIDE) and not component.startswith("training flag"):
            return (
                "a module that is not the root (an averaged copy, a teacher) differs: its first"
                " copy, its update or its checkpoint"
            )
        own = _STATE_HINTS.get(component.removesuffix(OUTSIDE))
        return _SET_LATE if phase == "optimizer" else own
    if class_ == "collective" and rung == "layer":
        return _REDUCED_OR_CHANGED
    if class_ == "computation" and rung == "layer" and kind in _AT_LAYER:
        return _AT_LAYER[kind]
    if class_ == "structure":
        return _of_structure(op, kind, phase, has_line=has_line)
    return _of_op(class_, op) if op is not None else _HINTS.get(class_)


def _of_op(class_: str, op: str) -> str | None:
    if class_ == "data":
        return _NOT_OF_TORCH
    is_other_form = class_ == "metadata" and op.startswith(_COLLECTIVES)
    return _OF_OTHER_FORM if is_other_form else _HINTS.get(class_)


def of_moved(kind: str, phase: str) -> str:
    """Return what to look at for an event that comes at another place of the step."""
    return _MOVED.get(phase) or _MOVED.get(kind) or _HINTS["structure"]


def _of_structure(op: str | None, kind: str, phase: str, *, has_line: bool) -> str:
    if op is not None and op.startswith(_COLLECTIVES):
        if phase != "backward":
            return _CALLED
        return _WENT_BACK if has_line else _EXCHANGED
    if (phase, kind, op) == ("backward", "input", "aten.add_.Tensor"):
        return _ADDED_TO
    if kind in ("local_gradient", "reduced_gradient"):
        return _TRAINED
    if phase == "optimizer":
        return _IN_OPTIMIZER
    return _OF_PASSES.get(phase, _HINTS["structure"])


def group_hint(component: str | None, count: int, of: int, *, is_start: bool) -> str | None:
    """Return what to look at for origins of the state that are alike, None if that says no more.

    Args:
        component: which component of the state.
        count: how many differ, `of` so many.
        of: see `count`.
        is_start: both runs begin with the step.
    """
    if component == "training flag" and count < of:
        return None
    # Biases and norms often start from a constant, whatever the seed.
    if component == "parameter" and (not is_start or 2 * count < of):
        return None
    return _GROUP_HINTS.get(component or "") if count > 1 else None


def _about(op: str, *, rehashed: bool, on_cpu: bool) -> str:
    name = base_name(op)
    known = _known(op, on_cpu=on_cpu)
    if known is not None:
        devices = " and ".join(known["devices"])
        return f"{name} is known to vary on {devices}: {known['why']}. {known['fix']}"
    if is_launch(op):
        return (
            f"{name} is the program's own kernel: look for atomic operations, for a race between"
            " its instances, and for what it reads or writes outside of its tensors"
        )
    if rehashed:
        return f"{name} is not known to vary: suspect the device, its memory or a driver"
    return (
        f"{name} is not known to vary: a write to its inputs that no op made (numpy, a custom"
        " kernel, faulty memory) looks the same; --rehash tells them apart"
    )


def _known(op: str, *, on_cpu: bool) -> dict[str, Any] | None:
    """Return what is known of an op that may vary on the devices used."""
    known = nondeterminism(op)
    return None if known is not None and on_cpu and "cpu" not in known["devices"] else known


def is_on_cpu(record: RankRecord) -> bool:
    """Return whether a rank used no other device."""
    return record.environment.get("decides.devices") == ["cpu"]


def is_of_all_steps(record: RankRecord) -> bool:
    """Return whether a rank was recorded in all steps of its run."""
    return not record.settings.get("steps")


def strength(rung: str, class_: str, num_inputs: int) -> str:
    """Return what the attribution to an origin rests on."""
    if class_ in ("state", "data"):
        return "compared directly: nothing in the record comes before it"
    if class_ in ("uninitialised", "unseen-producer") or (
        class_ in ("arguments", "rng") and rung in OP_RUNGS
    ):
        return "recorded op by op: everything that it read is equal"
    if class_ == "structure":
        return "the two sequences of events, compared by name"
    if not num_inputs:
        return "nothing that it was made from is recorded: the cause may lie before it"
    events = "the event it read is" if num_inputs == 1 else f"the {num_inputs} events it read are"
    if rung == "step":
        return f"{events} equal; what happens inside the model is not recorded at rung step"
    if rung in OP_RUNGS:
        return f"{events} equal, recorded op by op"
    return (
        f"{events} equal; at rung layer, operations between modules and tensors that no module"
        " was given (labels, say) are not recorded"
    )


def next_command(run: Run, rung: str, origins: list[Origin]) -> str | None:
    """Return the command that records a rerun more closely, or None if there is none.

    A run that continues another is told to count its steps on from there, as they were compared.
    """
    command = run.info.get("command")
    if not origins or not isinstance(command, list) or not command:
        return None
    settings = run.settings
    first = origins[0]
    record = run.ranks.get(first.rank)
    on_cpu = record is not None and is_on_cpu(record)
    known = first.op is not None and _known(first.op, on_cpu=on_cpu) is not None
    level = _NEXT[rung]
    if rung == "op" and not known and _may_be_a_launch(first, run):
        level = "kernel"
    shift = next((record.shift for record in run.ranks.values()), 0)
    start = settings.get("first_step")
    start = start if isinstance(start, int) else 0
    if start + shift >= 0:
        start, shift = start + shift, 0
    options = ["--level", level, "--steps", str(first.step - shift)]
    if level == rung:
        if first.class_ != "kernel" or known or settings.get("rehash"):
            return None
        options += ["--rehash", "--stats"]
    elif rung == "layer" and first.class_ in ("data", "state"):
        return None
    # A window of ranks keeps the others from writing; they run all the same.
    if len({origin.rank for origin in origins}) == 1 and len(run.ranks) > 1:
        options += ["--ranks", str(first.rank)]
    if run.info.get("digest") not in (None, DIGEST_ALGORITHM):
        options += ["--digest", str(run.info["digest"])]
    if start:
        options += ["--first-step", str(start)]
    words = ["fpdiff", "record", "--out", f"{run.path}.narrow", *options, "--"]
    return shlex.join([*words, *map(str, command)])


def _may_be_a_launch(origin: Origin, run: Run) -> bool:
    """Return whether a kernel that the rung op does not show may be behind an origin."""
    is_read_by_op = origin.class_ == "data" and origin.op is not None
    if not is_read_by_op and origin.class_ not in _MAY_BE_A_LAUNCH:
        return False
    record = run.ranks.get(origin.rank)
    return record is not None and UNSEEN_LAUNCH in record.blind_spots
