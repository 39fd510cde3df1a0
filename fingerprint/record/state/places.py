"""What a tensor that an optimizer updates is called, and its points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.state.standing import Standing


class Kept(NamedTuple):
    """An entry of an optimizer's state and its points."""

    key: Any
    begun: Point
    updated: Point
    standing: Standing


@dataclass(slots=True)
class Place:
    """What a tensor that an optimizer updates is called, and the points of its events.

    They are made once, not in each step: an event of the state costs little else.

    Attributes:
        kind: "parameter", or "master" for a tensor that only the optimizer holds.
        module: path of the module that it is a parameter of.
        name: its name there.
        begun: at the start of the step.
        updated: after the optimizer's step; `reduced_gradient` of its gradient before it.
    """

    kind: str
    module: str
    name: str
    module_class: str = ""
    standing: Standing = field(default_factory=Standing)
    begun: Point = field(init=False)
    updated: Point = field(init=False)
    reduced_gradient: Point = field(init=False)
    local_gradient: Point = field(init=False)
    _keys: tuple[Any, ...] = ()
    _kept: list[Kept] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the points."""
        module, name = self.module, self.name
        self.begun = Point("init", self.kind, module, self.module_class, 0, name)
        self.updated = Point("optimizer", self.kind, module, "", 0, name)
        slot = f"grad.{name}"
        self.reduced_gradient = Point("optimizer", "reduced_gradient", module, "", 0, slot)
        self.local_gradient = Point("backward", "local_gradient", module, "", 0, slot)

    def kept(self, entries: Mapping[Any, Any]) -> list[Kept]:
        """Return what an optimizer keeps for the tensor, in an order that is the same in any run.

        Args:
            entries: the optimizer's own, which a checkpoint may have brought in another order.
        """
        keys = tuple(entries)
        if keys != self._keys:
            self._keys = keys
            self._kept = [self._entry(key) for key in sorted(keys, key=str)]
        return self._kept

    def _entry(self, key: Any) -> Kept:
        slot = f"{self.name}.{key}"
        begun, updated = (
            Point(phase, "optimizer_state", self.module, "", 0, slot)
            for phase in ("init", "optimizer")
        )
        return Kept(key, begun, updated, Standing())
