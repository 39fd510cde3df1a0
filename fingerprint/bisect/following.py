"""What follows from a difference that it has not read: the program read it, or autograd did.

A training flag, an option or the graph that a forward left decides which operators are called. They
read tensors, so no edge of the record leads to what decided.
"""

from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import (
    Arm,
    Flags,
    Ints,
    Site,
    is_at_parameter,
    is_batch,
    is_frozen,
    is_kind,
    is_start,
)

_DECIDING = frozenset(
    ("amsgrad", "capturable", "centered", "dampening", "decoupled_weight_decay", "differentiable")
    + ("foreach", "fused", "maximize", "momentum", "nesterov", "weight_decay")
)
"""Options for which an optimizer calls other operators; a rate is none of them."""


def what_follows(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the mismatched rows that are no origins though they read nothing mismatched."""
    return mismatched & (
        _makes_state(aligned, mismatched)
        | _in_other_mode(aligned, mismatched)
        | by_other_options(aligned, mismatched)
        | by_other_training(aligned, mismatched)
        | _of_lone_parameters(aligned, mismatched)
        | _of_other_arguments(aligned, mismatched)
        | _of_other_graphs(aligned, mismatched)
        | _of_other_draws(aligned, mismatched)
        | _of_other_calls(aligned, mismatched)
    )


def _makes_state(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the ops of an optimizer in only one run, where only one had a state to start from.

    The other makes it anew: that is what follows from it.
    """
    lacking = mismatched & ~aligned.paired & aligned.having(is_kind("optimizer_state"))
    if not (lacking & aligned.having(is_start)).any():
        return np.zeros(len(aligned), bool)
    return ~aligned.paired & aligned.having(_is_of_optimizer)


def by_other_options(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the ops of an optimizer in only one run, where an option decides which it calls."""
    rows = np.flatnonzero(mismatched & aligned.having(is_kind("option"))).tolist()
    if not any(aligned.site(row)["slot"].rpartition(".")[2] in _DECIDING for row in rows):
        return np.zeros(len(aligned), bool)
    return mismatched & ~aligned.paired & aligned.having(_is_of_optimizer)


def by_other_training(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return what one run alone computes to train parameters, where other ones are frozen in it.

    It follows from requires_grad, which autograd reads and no op does: gradients, on the way to
    them too, what the optimizer does with them and what it keeps from then on. Its operators on
    lists of tensors get other lists.
    """
    if not (mismatched & aligned.having(is_frozen)).any():
        return np.zeros(len(aligned), bool)
    told = ~aligned.paired | aligned.having(is_kind("arguments")) | aligned.having(_is_of_lists)
    kept = aligned.having(is_start) & aligned.having(is_kind("optimizer_state"))
    result: Flags = mismatched & told & (kept | aligned.having(_is_of_update))
    gradients = ~aligned.paired & aligned.having(is_kind("local_gradient", "reduced_gradient"))
    sites = map(aligned.site, np.flatnonzero(gradients).tolist())
    trained = {(site["module"], site["slot"].removeprefix("grad.")) for site in sites}
    for row in np.flatnonzero(mismatched & aligned.having(_is_updated)).tolist():
        site = aligned.site(row)
        if (site["module"], site["slot"].split(".")[0]) in trained:
            result[row] = True  # In the other run it is what the step began with.
    return result


def _in_other_mode(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return what modules drew, and did and told their ops in one run, where their flags differ.

    It follows from the training flag, which the program reads and no op does. Flags are recorded at
    the step's first training forward, after a teacher, which never trains, has evaluated. So all
    that differs of that follows; a model that trains may have evaluated in another mode.
    """
    result: Flags = np.zeros(len(aligned), bool)
    modules = _modules(aligned, mismatched & aligned.having(_is_mode))
    if not modules:
        return result
    told = ~aligned.paired | aligned.having(is_kind("generator", "arguments"))
    result |= _is_in(aligned, mismatched & told & aligned.having(_is_of_training), modules)
    evaluated = mismatched & aligned.having(_is_of_evaluation)
    if evaluated.any():
        modules -= _modules(aligned, aligned.having(_is_of_training))
        result |= _is_in(aligned, evaluated, modules)
    return result


def _of_lone_parameters(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the gradients and updates of parameters that only one run has: of a tie lost, say."""
    result: Flags = np.zeros(len(aligned), bool)
    alone = mismatched & ~aligned.paired
    own = alone & aligned.having(is_kind("parameter")) & aligned.having(is_start)
    sites = [aligned.site(row) for row in np.flatnonzero(own).tolist()]
    if not sites:
        return result
    names = {(site["module"], site["slot"]) for site in sites}
    modules = {module for module, _ in names}
    for row in np.flatnonzero(alone & ~own).tolist():
        site = aligned.site(row)
        if _is_of_optimizer(site) or is_at_parameter(site):
            result[row] = site["module"] in modules
        elif site["op"] is None and site["phase"] in ("backward", "optimizer"):
            slot = site["slot"].removeprefix("grad.")
            result[row] = (site["module"], slot) in names
    return result


def _of_other_arguments(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the ops that a root's own code called in one run, which alone gave it something.

    Such as labels, which it computes a loss with if it has them.
    """
    alone = mismatched & ~aligned.paired
    given = np.flatnonzero(alone & aligned.having(is_batch) & aligned.having(_is_of_training))
    calls = {_call_of(aligned, row) for row in given.tolist()}
    if not calls or aligned.a.microbatch.max() != aligned.b.microbatch.max():
        return np.zeros(len(aligned), bool)
    result: Flags = np.zeros(len(aligned), bool)
    for row in np.flatnonzero(alone & aligned.having(_is_op_of_forward)).tolist():
        result[row] = _call_of(aligned, row) in calls
    return result


def _call_of(aligned: Aligned, row: int) -> tuple[str, int, int]:
    site = aligned.site(row)
    return site["module"], site["call"], int(aligned.microbatches[row])


def _of_other_graphs(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return what follows in the backward from ops that only one run called.

    Autograd calls what the forward's ops ask for: those of modules of whose forward too one run
    alone has some. Among other ops in the backward of a module, which are the same ones is
    uncertain, and so is whose scalars differ.
    """
    alone = mismatched & ~aligned.paired
    backward = alone & aligned.having(_is_op_of_backward)
    told = aligned.having(is_kind("arguments")) & aligned.having(_is_op_of_backward)
    result = _is_in(aligned, mismatched & aligned.paired & told, _modules(aligned, backward))
    forward = _modules(aligned, alone & aligned.having(_is_op_of_forward))
    return result | _is_in(aligned, backward, forward)


def _of_other_draws(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the draws before which the same generator was drawn from otherwise.

    A draw reads the state that the one before it found. That one leaves another state if it draws
    other sizes, from which the state that this one finds follows.
    """
    result: Flags = np.zeros(len(aligned), bool)
    draws = np.flatnonzero(mismatched & aligned.paired & aligned.having(_is_draw))
    if not len(draws):
        return result
    for arm, rows, index in _arms(aligned):
        otherwise = mismatched & (aligned.having(_is_arguments) | ~aligned.described_alike)
        calls = {
            arm.call_of(i) for i in np.flatnonzero(otherwise[rows]).tolist() if _has_op(arm, i)
        }
        for row in draws.tolist():
            before = [i for i in arm.direct(int(index[row])).tolist() if _is_draw(arm.site_of(i))]
            result[row] |= any(arm.call_of(i) in calls for i in before)
    return result


def _of_other_calls(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the arguments of calls that one run alone makes with what another such call made."""
    result: Flags = np.zeros(len(aligned), bool)
    alone = mismatched & ~aligned.paired
    told = alone & aligned.having(_is_arguments)
    if not told.any():
        return result
    for arm, rows, _ in _arms(aligned):
        event, producer = arm.edges
        among = alone[rows[event]] & alone[rows[producer]]
        calls: set[tuple[Any, ...]] = set()
        for i, made in zip(event[among].tolist(), producer[among].tolist(), strict=True):
            if _has_op(arm, i) and _has_op(arm, made) and arm.call_of(i) != arm.call_of(made):
                calls.add(arm.call_of(i))
        for i in np.flatnonzero(told[rows]).tolist():
            result[rows[i]] = arm.call_of(i) in calls
    return result


def _arms(aligned: Aligned) -> tuple[tuple[Arm, Ints, Ints], ...]:
    """Return each arm with the rows of its events, and the events of the rows."""
    (rows_a, rows_b), a, b = aligned.rows, aligned.a, aligned.b
    return (a, rows_a, aligned.index_a), (b, rows_b, aligned.index_b)


def _has_op(arm: Arm, index: int) -> bool:
    return arm.site_of(index)["op"] is not None


def _modules(aligned: Aligned, rows: Flags) -> set[str]:
    return {aligned.site(row)["module"] for row in np.flatnonzero(rows).tolist()}


def _is_in(aligned: Aligned, rows: Flags, modules: set[str]) -> Flags:
    result: Flags = np.zeros(len(aligned), bool)
    for row in np.flatnonzero(rows).tolist() if modules else ():
        result[row] = aligned.site(row)["module"] in modules
    return result


def _is_of_optimizer(site: Site) -> bool:
    return bool(site["op"] is not None and site["phase"] == "optimizer")


def _is_of_training(site: Site) -> bool:
    return bool(site["phase"] in ("forward", "recompute"))


def _is_of_evaluation(site: Site) -> bool:
    return bool(site["phase"] == "eval")


def _is_op_of_forward(site: Site) -> bool:
    return bool(site["op"] is not None and site["phase"] == "forward")


def _is_op_of_backward(site: Site) -> bool:
    is_op = site["op"] is not None and site["phase"] == "backward"
    return is_op and not is_at_parameter(site)


def _is_mode(site: Site) -> bool:
    """Return whether a site is of a module's mode, which its ops follow."""
    return bool(site["kind"] == "training_flag" and site["slot"] == "training")


def _is_updated(site: Site) -> bool:
    """Return whether a site is of what an optimizer made of a parameter, or holds for it."""
    return bool(site["kind"] in ("parameter", "optimizer_state") and site["phase"] == "optimizer")


def _is_of_lists(site: Site) -> bool:
    """Return whether a site is of an operator of an optimizer that is no one parameter's."""
    return _is_of_optimizer(site) and not site["module"]


def _is_of_update(site: Site) -> bool:
    return bool(site["phase"] in ("backward", "optimizer"))


def _is_draw(site: Site) -> bool:
    """Return whether a site is of the state in which an op found a generator."""
    return bool(site["kind"] == "generator" and site["op"] is not None)


def _is_arguments(site: Site) -> bool:
    return bool(site["kind"] == "arguments")
