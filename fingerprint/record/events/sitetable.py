"""Sites: each point of the program is described once and numbered."""

import json
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.store.schema import GROUPS, PHASES


class Point(NamedTuple):
    """A point of the program: all of a site's key but its occurrence.

    `op` is an operator's name, at rung op; `members` the ranks of a collective.
    """

    phase: str
    kind: str
    module: str
    module_class: str
    call: int
    slot: str
    op: str | None = None
    members: str | None = None


SiteKey = tuple[Point, int, "torch.dtype | str", "torch.Size | tuple[int, ...]"]
"""(point, occurrence, dtype, shape)."""

_NOT_STRUCTURE = ("site", "module_class", "source")

_GROUP_OF_KIND = {"parameter": "parameters", "loss": "loss"}


class SiteTable:
    """Numbers sites in the order of their first event."""

    def __init__(
        self,
        add_row: Callable[[dict[str, Any]], None],
        line_of: Callable[[Point], str | None] = lambda point: None,
    ) -> None:
        """Start empty; `add_row` is given each new row of SITES, `line_of` asked for its line."""
        self._numbers: dict[SiteKey, int] = {}
        self._add_row = add_row
        self._line_of = line_of
        self._descriptions = bytearray()
        self._masks = array("i")

    def number(self, key: SiteKey, source: str | None = None) -> int:
        """Return the number of a site, adding it if it is new.

        Args:
            key: of the site.
            source: the line of the program where it is, "" where that is not known; asked for by
                default.
        """
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            if source is None:
                source = self._line_of(key[0])
            self._add(number, key, source or None)
        return number

    def _add(self, number: int, key: SiteKey, source: str | None) -> None:
        point, occurrence, dtype, shape = key
        phase, kind, module, module_class, call, slot, op, members = point
        row = {
            "site": number,
            "phase": phase,
            "kind": kind,
            "module": _written(module),
            "module_class": _written(module_class),
            "call": call,
            "op": op,
            "occurrence": occurrence,
            "slot": _written(slot),
            "members": members,
            "dtype": str(dtype).removeprefix("torch."),
            "shape": list(shape),
            "source": source and _written(source),
        }
        self._add_row(row)
        described = {k: v for k, v in row.items() if k not in _NOT_STRUCTURE}
        self._descriptions += digest_bytes(json.dumps(described, sort_keys=True).encode())
        self._masks.append(_group_mask(point))

    def descriptions(self) -> npt.NDArray[np.uint8]:
        """Return a 16-byte digest of each site's description, (sites, 16)."""
        return np.frombuffer(bytes(self._descriptions), np.uint8).reshape(-1, 16)

    def masks(self) -> npt.NDArray[np.int32]:
        """Return each site's groups of a step row as bits over schema.GROUPS, (sites,)."""
        return np.array(self._masks, np.int32)


def _written(name: str) -> str:
    """Return a name as UTF-8 can hold it: any may hold half of a surrogate pair."""
    return name.encode(errors="backslashreplace").decode()


def _group_mask(point: Point) -> int:
    kind, phase = point.kind, point.phase
    if kind == "generator" and phase == "init":
        return 1 << GROUPS.index("generator")
    if kind == "metric":
        return 1 << GROUPS.index("metrics")
    mask = 1 << PHASES.index(phase)
    if group := _GROUP_OF_KIND.get(kind):
        mask |= 1 << GROUPS.index(group)
    elif kind == "input" and phase == "forward" and point.op is None:
        mask |= 1 << GROUPS.index("batch") if point.slot.startswith("arg.") else 0
    return mask
