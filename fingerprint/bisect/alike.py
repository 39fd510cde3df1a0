"""Origins that one cause may have made: alike but for the module, the parameter or the call."""

import re
from collections.abc import Hashable, Iterable
from functools import cached_property

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Ints, Site
from fpdiff.fingerprint.bisect.classify import OUTSIDE, Kind, component_of
from fpdiff.fingerprint.bisect.findings import Candidate

MAX_NAMES = 16

_OF_TENSORS = frozenset(("parameter", "buffer", "master", "local_gradient", "reduced_gradient"))
"""Kinds whose slot is the name of a parameter or a buffer, and no more than that."""

_OF_MODULES = frozenset(("output", "gradient", "generator", "input"))
"""Kinds which, where no operator is known, are another thing in a module of another class."""

_OF_CALLS = frozenset(("result", "written"))
"""Kinds of which one call of an operator may have several, all of one cause."""

_NAMED = _OF_TENSORS | {"optimizer_state", "option", "scaler"}
"""Kinds of which a module may have several, told apart by their slots."""

_CALL = ("phase", "module", "op", "call", "occurrence", "source")

_HELD = re.compile(r"(?:optimizer\d+\.(?:group\d+\.\d+|stray)|[^.]*)\.(.*)")
"""What an optimizer holds for a parameter, or for a tensor of its own: the name goes before it."""

_OPTION = re.compile(r"(optimizer\d+\.group)\d+(\..*)")
_OF_CHILD = re.compile(r"(?:.*\.)?((?:out|arg)\..*)")
_NUMBER = re.compile(r"(?<![^.])(group)?\d+(?![^.])")


class Sorts:
    """Sorts the events of a step: those of a sort differ in module, parameter or call."""

    def __init__(self, aligned: Aligned) -> None:
        """Belong to a step."""
        self._aligned = aligned

    def of(self, candidate: Candidate, kind: Kind) -> Hashable:
        """Return what the origins of a group have in common, given one and what it is."""
        row, how = candidate.row, (candidate.moved, candidate.count)
        return int(self._of_row[row]), kind.class_, kind.component, how, self._difference(row)

    def _difference(self, row: int) -> Hashable:
        """Return in which runs a row is, dtypes that differ and, of a flag, which way it went."""
        aligned = self._aligned
        a, b = int(aligned.index_a[row]), int(aligned.index_b[row])
        if a < 0 or b < 0:
            return a < 0, b < 0
        if not aligned.described_alike[row]:
            return aligned.a.site_of(a)["dtype"], aligned.b.site_of(b)["dtype"]
        is_flag = aligned.a.site_of(a)["kind"] == "training_flag"
        return aligned.a.digest[a].tobytes() if is_flag else None

    def size(self, row: int) -> int:
        """Return how many events of a row's sort there are, equal or not."""
        return int(self._sizes[self._of_row[row]])

    @cached_property
    def _of_row(self) -> Ints:
        aligned = self._aligned
        numbers: dict[Hashable, int] = {}
        result = np.zeros(len(aligned), np.int64)
        for arm, index in ((aligned.b, aligned.index_b), (aligned.a, aligned.index_a)):
            of_site = [numbers.setdefault(_sort(site), len(numbers)) for site in arm.sites.rows]
            present = index >= 0
            result[present] = np.array(of_site, np.int64)[arm.site[index[present]]]
        return result

    @cached_property
    def _sizes(self) -> Ints:
        result: Ints = np.bincount(self._of_row)
        return result


def _sort(site: Site) -> Hashable:
    """Return a site without its module, the name of its parameter, its call and its tensor."""
    kind, slot = site["kind"], site["slot"]
    of_module = site["op"] is None and kind in _OF_MODULES
    if kind in _OF_TENSORS or kind in _OF_CALLS:
        slot = ""
    elif kind == "optimizer_state" and (held := _HELD.fullmatch(slot)):
        slot = held[1]
    elif kind == "option" and (option := _OPTION.fullmatch(slot)):
        slot = option[1] + option[2]
    elif of_module and (child := _OF_CHILD.fullmatch(slot)):
        slot = child[1]
    is_outside = (component_of(site) or "").endswith(OUTSIDE)
    class_ = site["module_class"] if of_module else ""
    return site["phase"], kind, site["op"], site["members"], slot, class_, is_outside


def grouped(sorts: Iterable[Hashable]) -> list[list[int]]:
    """Return the places of those that are equal; groups and places in order."""
    groups: dict[Hashable, list[int]] = {}
    for place, sort in enumerate(sorts):
        groups.setdefault(sort, []).append(place)
    return list(groups.values())


def names_of(sites: list[Site]) -> list[str]:
    """Return what tells each origin of a group from the others of it."""
    calls = {tuple(site[key] for key in _CALL) for site in sites}
    if len(calls) == 1 and sites[0]["kind"] in _OF_CALLS:
        return [str(site["slot"]) for site in sites]
    return [_name_of(site) for site in sites]


def _name_of(site: Site) -> str:
    module = str(site["module"])
    if site["kind"] in _NAMED and site["op"] is None:
        return f"{module}.{site['slot'].removeprefix('grad.')}".lstrip(".")
    if not module and site["op"] is not None and site["source"]:
        return str(site["source"])
    return module or "the root module"


def patterns(names: Iterable[str]) -> dict[str, int]:
    """Return how many names there are of each pattern, in which a star stands for any number.

    Numbers that do not vary among the names of a pattern stay. The first patterns only.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_NUMBER.sub(r"\1*", name), []).append(name)
    return {_pattern(own): len(own) for own in list(found.values())[:MAX_NAMES]}


def _pattern(names: list[str]) -> str:
    columns = zip(*(name.split(".") for name in names), strict=True)
    parts = [
        column[0] if len(set(column)) == 1 else _NUMBER.sub(r"\1*", column[0]) for column in columns
    ]
    return ".".join(parts)
