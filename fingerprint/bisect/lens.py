"""Compares what both runs recorded when their rungs or windows of modules differ.

The step rows of such runs are digests over other events, so steps are compared event by event
over those that the lens lets through. Edges to events that it hides are lost; an event then counts
as having read everything before it in its step.
"""

import re
from dataclasses import dataclass
from typing import Any

from fpdiff.fingerprint.catalogue import is_launch

_AT_STEP = {
    "parameter",
    "buffer",
    "optimizer_state",
    "master",
    "option",
    "scaler",
    "training_flag",
    "local_gradient",
    "reduced_gradient",
    "loss",
    "metric",
    "mark",
}
_LAYER = {"output", "gradient"}
_UNMADE = {"input", "uninitialised", "rewrite"}


@dataclass(frozen=True)
class Lens:
    """Which events are compared.

    Attributes:
        rung: events of deeper rungs are hidden, if the runs' rungs differ, else None.
        modules: regular expressions that a layer event's module must match, all of them.
    """

    rung: str | None
    modules: tuple[str, ...]

    @property
    def is_clear(self) -> bool:
        """Whether it hides nothing."""
        return self.rung is None and not self.modules

    def shows(self, site: dict[str, Any]) -> bool:
        """Return whether events of a site (a row of SITES) are compared."""
        kind, slot = site["kind"], site["slot"]
        if site["op"] is not None and not self._shows_op(site):
            return False
        is_batch = kind == "input" and slot.startswith("arg.") and site["op"] is None
        if self.rung == "step":
            return kind in _AT_STEP or is_batch or (kind == "generator" and site["phase"] == "init")
        if self.modules and not is_batch and kind not in _AT_STEP and site["phase"] != "init":
            # Who was given what depends on the windows: only what a module made is comparable.
            return kind in _LAYER and all(re.search(m, site["module"]) for m in self.modules)
        return True

    def _shows_op(self, site: dict[str, Any]) -> bool:
        """Return whether events of an op are compared.

        What a kernel wrote is nobody's at the rung op, so what ops read there is not comparable.
        """
        if self.rung == "op":
            return not is_launch(site["op"]) and site["kind"] not in _UNMADE
        return self.rung not in ("step", "layer")
