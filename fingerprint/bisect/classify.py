"""What kind of difference an origin is, in one word and one sentence."""

from dataclasses import dataclass, field

from fpdiff.fingerprint.bisect.arm import Site
from fpdiff.fingerprint.bisect.origins import is_batch
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference

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
    """

    num_ranks: int
    local_is_known: bool


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an origin beside its site.

    Attributes:
        in_a: run A has the event; `in_b` likewise.
        same_description: dtype and shape are equal, if both have it.
        num_inputs: how many events it read, all of them equal.
        other_inputs: what only one run's event read, by run.
        generators: torch's generators that differ at the start of the step and are drawn from,
            where the record does not show which module drew.
        environment: entries that differ on the origin's rank and can change a result.
        reduction: where the gradients are reduced, if they are.
    """

    in_a: bool = True
    in_b: bool = True
    same_description: bool = True
    num_inputs: int = 1
    other_inputs: dict[str, str] = field(default_factory=dict)
    generators: list[str] = field(default_factory=list)
    environment: list[EnvironmentDifference] = field(default_factory=list)
    reduction: Reduction | None = None


def classify(site: Site, facts: Facts) -> Kind:
    """Classify an origin by the kind of its event and by what about it differs."""
    component = component_of(site)
    if not (facts.in_a and facts.in_b):
        return _one_sided(site, component, only="A" if facts.in_a else "B")
    if component is not None:
        how = "differs" if facts.same_description else "differs in dtype or shape"
        return Kind("state", component, f"{component} {_path(site)} {how}")
    if not facts.same_description:
        return Kind("metadata", None, f"{described(site)} has another dtype or shape")
    if site["kind"] == "generator":
        return Kind("rng", None, f"{where(site)} drew from a generator in another state")
    if is_batch(site):
        return Kind("data", None, f"{described(site)} differs")
    return _computed(site, facts)


def moved(site: Site, count: int) -> Kind:
    """Return the finding that events come at another place of the step."""
    more = f" (and {count - 1} more)" if count > 1 else ""
    what = f"{described(site)}{more} comes at another place of the step in B than in A"
    return Kind("structure", None, what)


def component_of(site: Site) -> str | None:
    """Return which component of the state an event belongs to, None for anything else."""
    if site["phase"] != "init":
        return None
    component = _COMPONENT.get(site["kind"])
    if component is not None and site["module"].startswith("~"):
        return f"{component}{OUTSIDE}"
    return component


def _computed(site: Site, facts: Facts) -> Kind:
    """Classify what a program computed, from equal things and to another result."""
    what = described(site)
    if len(facts.other_inputs) == 2:
        read = ", ".join(f"in {run} it read {names}" for run, names in facts.other_inputs.items())
        return Kind("structure", None, f"{what} was made from other things: {read}")
    if facts.generators:
        names = ", ".join(facts.generators)
        return Kind(
            "rng", None, f"{what} differs, and so did generator {names} when the step began"
        )
    result = f"{what} differs although all it read is equal"
    if not facts.num_inputs:
        result = f"{what} differs; what it was made from is not recorded"
    if site["kind"] == "reduced_gradient" and facts.reduction is not None:
        return Kind("collective", None, f"{what} differs: {_reduced(facts.reduction)}")
    if facts.environment:
        keys = ", ".join(d.key for d in facts.environment[:3])
        more = len(facts.environment) - 3
        keys += f" and {more} more" if more > 0 else ""
        return Kind("environment", None, f"{result}; the environment is not: {keys}")
    return Kind("computation", None, result)


def _reduced(reduction: Reduction) -> str:
    if not reduction.local_is_known:
        return f"it came out of a reduction over {reduction.num_ranks} ranks, whose own are unknown"
    return f"each of the {reduction.num_ranks} ranks gave an equal gradient to the reduction"


def _one_sided(site: Site, component: str | None, only: str) -> Kind:
    other = "B" if only == "A" else "A"
    if site["kind"] == "rewrite":
        what = (
            f"{site['slot']} of {where(site)} was overwritten in {only}: its bytes changed after"
            " it was made, with no write recorded"
        )
        return Kind("unseen-producer", None, what)
    if component is not None:
        return Kind("state", component, f"{component} {_path(site)} exists only in {only}")
    return Kind("structure", None, f"{described(site)} exists only in {only}, not in {other}")


def where(site: Site) -> str:
    """Return the module of a site, as a reader would say it."""
    return f"module {site['module']}" if site["module"] else "the root module"


def _path(site: Site) -> str:
    return f"{site['module']}.{site['slot']}".lstrip(".")


def described(site: Site) -> str:
    """Return what an event is of, as a reader would say it."""
    kind, slot = site["kind"], site["slot"]
    if is_batch(site):
        return f"the batch ({slot} of {where(site)})"
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
    updated = f"{_COMPONENT.get(kind, kind)} {_path(site)}"
    if site["phase"] == "optimizer":
        updated += " after the optimizer's step"
    return by_kind.get(kind, updated)
