"""What kind of difference an origin is, in one word and one sentence."""

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Kind:
    """An origin's class, its component if it is state, and what happened."""

    class_: str
    component: str | None
    what: str


def classify(
    site: dict[str, Any],
    *,
    in_a: bool,
    in_b: bool,
    same_description: bool,
    environment: list[EnvironmentDifference],
) -> Kind:
    """Classify an origin by the kind of its event and by what about it differs.

    Args:
        site: the row of SITES.
        in_a: run A has the event; `in_b` likewise.
        same_description: dtype and shape are equal, if both have it.
        environment: entries that differ on the origin's rank and can change a result.
    """
    name = f"{site['module']}.{site['slot']}".lstrip(".")
    component = _component(site)
    if not (in_a and in_b):
        return _one_sided(site, name, component, only="A" if in_a else "B")
    if component is not None:
        how = "differs" if same_description else "differs in dtype or shape"
        return Kind("state", component, f"{component} {name} {how}")
    if not same_description:
        return Kind("metadata", None, f"{_described(site)} has another dtype or shape")
    if site["kind"] == "generator":
        return Kind("rng", None, f"{_where(site)} drew from a generator in another state")
    if site["kind"] == "input" and site["slot"].startswith("arg."):
        return Kind("data", None, f"the batch differs: {site['slot']} of {_where(site)}")
    if environment:
        keys = ", ".join(d.key for d in environment[:3])
        what = f"{_described(site)} differs although all it read is equal, and so does {keys}"
        return Kind("environment", None, what)
    return Kind("computation", None, f"{_described(site)} differs although all it read is equal")


def _component(site: dict[str, Any]) -> str | None:
    if site["phase"] != "init":
        return None
    component = _COMPONENT.get(site["kind"])
    if component is not None and site["module"].startswith("~"):
        return f"{component} of a module outside the root"
    return component


def _one_sided(site: dict[str, Any], name: str, component: str | None, only: str) -> Kind:
    other = "B" if only == "A" else "A"
    if site["kind"] == "rewrite":
        what = f"{site['slot']} of {_where(site)} was changed in {only} by a write nobody announced"
        return Kind("unseen-producer", None, what)
    if component is not None:
        return Kind("state", component, f"{component} {name} exists in {only} only")
    return Kind("structure", None, f"{_described(site)} exists in {only} only, not in {other}")


def _where(site: dict[str, Any]) -> str:
    return f"module {site['module']}" if site["module"] else "the root module"


def _described(site: dict[str, Any]) -> str:
    """Return what an event is of, as a reader would say it."""
    kind, slot, where = site["kind"], site["slot"], _where(site)
    by_kind = {
        "input": f"what {where} passed on as {slot}",
        "output": f"the output {slot} of {where}",
        "gradient": f"the gradient computed in the backward of {where} ({slot})",
        "local_gradient": f"the gradient of {where}'s {slot.removeprefix('grad.')}",
        "reduced_gradient": f"the optimizer's view of {where}'s {slot}",
        "loss": "the loss",
        "mark": f"the tensor marked {slot}",
        "generator": f"a draw by {where}",
        "rewrite": f"{slot} of {where}",
    }
    return by_kind.get(kind, f"{_COMPONENT.get(kind, kind)} {slot} of {where}")
