"""What kind of difference an origin is, in one word and one sentence."""

from dataclasses import dataclass, field

from fpdiff.fingerprint.bisect.arm import Site, is_batch, is_frozen
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference
from fpdiff.fingerprint.catalogue import base_name

_COMPONENT = {
    "parameter": "parameter",
    "buffer": "buffer",
    "optimizer_state": "optimizer state",
    "master": "master weights",
    "option": "param_group option",
    "scaler": "gradient scaler",
    "training_flag": "training flag",
}
"""State kinds, as a reader would say them."""

_FROZEN = "requires_grad"

COMPONENTS = frozenset((*_COMPONENT.values(), _FROZEN))
"""Components of the state."""

OUTSIDE = " of a module outside the root"


@dataclass(frozen=True)
class Kind:
    """An origin's class, its component if it is state, and what happened."""

    class_: str
    component: str | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """The process group that a rank's gradients are reduced in; all of it was compared.

    Attributes:
        num_ranks: how many it has.
        local_is_known: whether the rank's own gradient, before the reduction, is recorded.
        is_alone: whether the other ranks' gradients are equal where their optimizers got them.
        left_alike: whether what the reduction left is recorded, and equal.
    """

    num_ranks: int
    local_is_known: bool
    is_alone: bool = False
    left_alike: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an origin beside its site.

    Attributes:
        in_a: run A has the event; `in_b` likewise.
        same_call: it is of what an op was given that both runs call here.
        same_description: dtype and shape are equal, if both have it.
        num_inputs: how many events it read, all of them equal.
        other_inputs: what only one run's event read, or read at that place, by run.
        generators: torch's generators that differ at the start of the step and are drawn from,
            where the record does not show which module drew.
        environment: entries that differ on the origin's rank and can change a result.
        reduction: where the gradients are reduced, if they are.
        read_hole: it read memory that no op had written.
        exact: what it read is known op by op.
    """

    in_a: bool = True
    in_b: bool = True
    same_call: bool = False
    same_description: bool = True
    num_inputs: int = 1
    other_inputs: dict[str, str] = field(default_factory=dict)
    generators: list[str] = field(default_factory=list)
    environment: list[EnvironmentDifference] = field(default_factory=list)
    reduction: Reduction | None = None
    read_hole: bool = False
    exact: bool = False


def classify(site: Site, facts: Facts) -> Kind:
    """Classify an origin by the kind of its event and by what about it differs."""
    component = component_of(site)
    if site["kind"] == "rewrite" and not _is_of_parameter(site):
        return _rewritten(site, facts)
    if site["kind"] == "uninitialised" or facts.read_hole:
        return _unwritten(site)
    if not (facts.in_a and facts.in_b):
        return _one_sided(site, component, facts)
    if component is not None:
        return _state(site, component, facts)
    if not facts.same_description:
        return Kind("metadata", None, f"{described(site)} has another dtype or shape")
    if site["kind"] in _BY_KIND or is_batch(site):
        return _by_kind(site)
    if site["kind"] == "input" and site["op"] is not None:
        return _unmade(site)
    if facts.other_inputs:
        return _made_otherwise(site, facts.other_inputs)
    if facts.exact and site["kind"] in _COPIES and facts.num_inputs:
        what = f"{described(site)} changed after the op that made it, which is equal"
        return Kind("unseen-producer", None, what)
    return _computed(site, facts)


def _state(site: Site, component: str, facts: Facts) -> Kind:
    """Classify a part of the state, which both runs have."""
    if is_frozen(site):
        what = f"other parameters of {where(site)} are frozen in B than in A (requires_grad)"
        return Kind("state", component, what)
    how = "differs" if facts.same_description else "differs in dtype or shape"
    return Kind("state", component, f"{component} {_path(site)} {how}")


_BY_KIND = frozenset(("generator", "arguments"))


def _by_kind(site: Site) -> Kind:
    """Classify what says by its kind alone what differs."""
    if site["kind"] == "generator":
        who = f"{op_of(site)} in {where(site)}" if site["op"] else where(site)
        return Kind("rng", None, f"{who} drew from a generator in another state")
    if site["kind"] == "arguments":
        return Kind("arguments", None, f"{described(site)} differ, its tensors do not")
    return Kind("data", None, f"{described(site)} differs")


_COPIES = frozenset(
    ("output", "gradient", "local_gradient", "reduced_gradient", "loss", "mark", "sent")
    + ("parameter", "master", "optimizer_state", "buffer", "input")
)
"""Kinds whose events are of a tensor that an op made: at rung op they repeat the op's digest."""


def _is_of_parameter(site: Site) -> bool:
    """Return whether a rewrite is of a module's own parameter, which torch has announced."""
    return site["op"] is None and "." not in site["slot"]


def _rewritten(site: Site, facts: Facts) -> Kind:
    """Classify bytes that changed after they were made, in one run or, otherwise, in both."""
    runs = "A" if not facts.in_b else "B" if not facts.in_a else "both runs, to other values"
    reader = f"{op_of(site)} in {where(site)}" if site["op"] else where(site)
    what = (
        f"{site['slot']} of {reader} was overwritten in {runs}: its bytes changed after it was"
        " made, with no write recorded"
    )
    return Kind("unseen-producer", None, what)


def _unwritten(site: Site) -> Kind:
    """Classify what read memory, or holds some, that no op had written."""
    if site["op"] is None:
        what = f"{described(site)} holds memory that no op had written"
    else:
        reader = f"{op_of(site)} in {where(site)}"
        what = f"{reader} read memory that no op had written ({site['slot']})"
    return Kind("uninitialised", None, what)


def _made_otherwise(site: Site, other_inputs: dict[str, str]) -> Kind:
    """Classify what was made from other things, or from the same ones in another order."""
    read = ", ".join(f"in {run} it read {names}" for run, names in other_inputs.items())
    return Kind("structure", None, f"{described(site)} was made from other things: {read}")


def _unmade(site: Site) -> Kind:
    """Classify a tensor that no op made, where an op reads it."""
    what = f"{described(site)} differs, and no recorded op made it"
    if site["phase"] in ("backward", "recompute", "optimizer"):
        return Kind("unseen-producer", None, what)
    return Kind("data", None, what)


def moved(site: Site, count: int) -> Kind:
    """Return the finding that events come at another place of the step."""
    more = f" (and {count - 1} more)" if count > 1 else ""
    what = f"{described(site)}{more} comes at another place of the step in B than in A"
    return Kind("structure", None, what)


def of_microbatches(site: Site, numbers: tuple[int, int]) -> Kind:
    """Return the finding that a step has another number of microbatches, from `site` on."""
    a, b = numbers
    only = "A" if a > b else "B"
    what = f"the step has {_microbatches(a)} in A and {b} in B"
    return Kind("structure", None, f"{what}: {described(site)} exists only in {only}")


def of_other_root(name: str) -> Kind:
    """Return the finding that run A's root is another model's name in run B."""
    what = f"the first model that is called is another one: the root module of A is {name} in B"
    return Kind("structure", None, what)


def _microbatches(number: int) -> str:
    return "1 microbatch" if number == 1 else f"{number} microbatches"


def component_of(site: Site) -> str | None:
    """Return which component of the state an event belongs to, None for anything else."""
    if site["phase"] != "init" and not is_set_late(site):
        return None
    component = _FROZEN if is_frozen(site) else _COMPONENT.get(site["kind"])
    if component is not None and site["module"].startswith("~"):
        return f"{component}{OUTSIDE}"
    return component


def is_set_late(site: Site) -> bool:
    """Return whether a site is of an option that the program set after the step's forward."""
    return bool(site["kind"] == "option" and site["phase"] == "optimizer")


def _computed(site: Site, facts: Facts) -> Kind:
    """Classify what a program computed, from equal things and to another result."""
    what = described(site)
    if facts.generators:
        names = ", ".join(facts.generators)
        return Kind(
            "rng", None, f"{what} differs, and so did generator {names} when the step began"
        )
    result = f"{what} differs although all it read is equal"
    if site["kind"] == "local_gradient" and not facts.exact:
        result += ", but for what .grad held before, which is not recorded"
    if not facts.num_inputs:
        result = f"{what} differs; what it was made from is not recorded"
    if site["kind"] == "reduced_gradient" and facts.reduction is not None:
        after = facts.reduction.local_is_known and facts.reduction.is_alone
        after |= facts.reduction.left_alike
        class_ = "computation" if after else "collective"
        return Kind(class_, None, f"{what} differs: {_reduced(facts.reduction)}")
    if facts.environment:
        keys = ", ".join(d.key for d in facts.environment[:3])
        more = len(facts.environment) - 3
        keys += f" and {more} more" if more > 0 else ""
        return Kind("environment", None, f"{result}; the environment is not: {keys}")
    if site["kind"] == "received":
        return Kind(
            "collective", None, f"{what} differs though every rank gave equal tensors to it"
        )
    # What was given to a collective is not the collective's doing.
    is_of_kernel = site["op"] is not None and site["kind"] != "sent"
    return Kind("kernel" if is_of_kernel else "computation", None, result)


def _reduced(reduction: Reduction) -> str:
    if reduction.left_alike:
        ranks = f"{reduction.num_ranks} ranks"
        return f"it has changed after the reduction over {ranks}, which left equal ones"
    if not reduction.local_is_known:
        return f"it came out of a reduction over {reduction.num_ranks} ranks, whose own are unknown"
    if reduction.is_alone:
        return "every rank gave an equal gradient to the reduction, and all others got an equal one"
    return f"each of the {reduction.num_ranks} ranks gave an equal gradient to the reduction"


def _one_sided(site: Site, component: str | None, facts: Facts) -> Kind:
    only, other = ("A", "B") if facts.in_a else ("B", "A")
    if facts.same_call:
        return Kind("arguments", None, f"{described(site)} were given in {only} alone")
    if component is not None and is_set_late(site):
        what = f"{component} {_path(site)} was set between the forward and the step in {only} alone"
        return Kind("state", component, what)
    if component is not None:
        return Kind("state", component, f"{component} {_path(site)} exists only in {only}")
    exist = "exist" if site["kind"] == "arguments" else "exists"
    return Kind("structure", None, f"{described(site)} {exist} only in {only}, not in {other}")


def op_of(site: Site) -> str:
    """Return a site's op without its overload, as a reader would say it."""
    return base_name(site["op"]) if site["op"] else ""


def where(site: Site) -> str:
    """Return the module of a site, as a reader would say it."""
    return f"module {site['module']}" if site["module"] else "the root module"


def _path(site: Site) -> str:
    return f"{site['module']}.{site['slot']}".lstrip(".")


def described(site: Site) -> str:
    """Return what an event is of, as a reader would say it."""
    kind, slot = site["kind"], site["slot"]
    if site["op"] is not None:
        return _op_described(site)
    if is_batch(site):
        return f"the batch ({slot} of {where(site)})"
    if kind == "input" and site["phase"] == "recompute" and slot.startswith("arg."):
        return f"what the recomputation of {where(site)} was given ({slot})"
    gradient_of = f"{site['module']}.{slot.removeprefix('grad.')}".lstrip(".")
    by_kind = {
        "input": f"a tensor made by {where(site)} itself, passed on as {slot},",
        "output": f"output {slot} of {where(site)}",
        "gradient": f"a gradient that the backward of {where(site)} computed ({slot})",
        "local_gradient": f"this rank's own gradient of {gradient_of}",
        "reduced_gradient": f"the gradient of {gradient_of}, as the optimizer got it,",
        "loss": "the loss",
        "mark": f"the tensor marked {slot}",
        "generator": f"a random draw by {where(site)}",
        "rewrite": f"the overwritten {slot} of {where(site)}",
    }
    if kind == "rewrite" and _is_of_parameter(site):
        return f"parameter {_path(site)}, as the step wrote it before this call,"
    updated = f"{_COMPONENT.get(kind, kind)} {_path(site)}"
    if site["phase"] == "optimizer":
        updated += " after the optimizer's step"
    return by_kind.get(kind, updated)


def _op_described(site: Site) -> str:
    """Return what an op's event is of."""
    place = f" in {where(site)}" if site["module"] else ""
    among = f" among ranks {site['members']}" if site["members"] else ""
    name, slot = f"{op_of(site)}{place}{among}", site["slot"]
    by_kind = {
        "result": f"{slot} of {name}",
        "written": f"{slot} as written by {name}",
        "arguments": f"arguments of {name} ({slot})",
        "number": f"the number that {name} took out of a tensor",
        "input": f"{slot} of {name}",
        "generator": f"the generator that {name} drew from",
        "sent": f"{slot} as given to {name}",
        "received": f"{slot} as got from {name}",
    }
    return by_kind.get(site["kind"], f"{site['kind']} {slot} of {name}")
