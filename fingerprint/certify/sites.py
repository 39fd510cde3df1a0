"""The sites of all ranks under common numbers, so that what is known of one is worked out once."""

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from fpdiff.fingerprint.bisect.arm import Ints
from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.store.checks import damaged
from fpdiff.store.run import RankRecord
from fpdiff.store.schema import PHASES, rank_name


class Site(NamedTuple):
    """A row of SITES."""

    point: Point
    occurrence: int
    dtype: str
    shape: tuple[int, ...]
    source: str | None

    @property
    def module(self) -> str:
        """The module as a sentence names it."""
        return f"module {self.point.module}" if self.point.module else "the root module"

    @property
    def kind(self) -> str:
        """Dtype and shape as a sentence names them."""
        return f"{self.dtype}{list(self.shape)}" if self.dtype else "no tensor"


class Sites:
    """Numbers the sites of all ranks alike."""

    def __init__(self) -> None:
        """Start empty."""
        self.rows: list[Site] = []
        self.table = SiteTable(lambda row: None)  # Describes sites as the recorder did.
        self._columns: dict[Callable[[Site], Any], _Column] = {}

    def number(self, record: RankRecord) -> "Numbering":
        """Return the common numbers of a rank's sites.

        Raises:
            StoreError: a file is damaged.
        """
        rows = record.sites().sort_by("site").to_pylist()
        for row in rows:
            if row["phase"] not in PHASES:
                folder = record.root / "sites" / rank_name(record.rank)
                raise damaged(folder, f"phase {row['phase']!r} is none of the format's")
        common = np.array([self._number(row) for row in rows], np.int64)
        return Numbering(np.array([row["site"] for row in rows], np.int64), common)

    def _number(self, row: dict[str, Any]) -> int:
        point = Point(*(row[name] for name in Point._fields))
        shape = torch.Size(row["shape"])
        number = self.table.number((point, row["occurrence"], row["dtype"], shape), "")
        if number == len(self.rows):
            site = Site(point, row["occurrence"], row["dtype"], tuple(shape), row["source"])
            self.rows.append(site)
        return number

    def column(self, of: Callable[[Site], Any]) -> Ints:
        """Return a number for each site, equal where `of` returns equal things; -1 for None.

        True and False are 1 and 0; the numbers of anything else have no meaning of their own.
        """
        column = self._columns.get(of)
        if column is None:
            column = self._columns[of] = _Column(of)
        return column.of_all(self.rows)


def described(site: Site) -> tuple[object, ...]:
    """Return what a column of sites tells apart by dtype and shape."""
    return site.dtype, site.shape


class Numbering(NamedTuple):
    """Leads from a rank's own numbers of sites to the common ones."""

    own: Ints
    common: Ints

    def __call__(self, numbers: Ints) -> Ints:
        """Return the common numbers of sites that the rank has."""
        result: Ints = self.common[np.searchsorted(self.own, numbers)]
        return result


class _Column:
    """What a function says of each site; remembered, since sites come rank by rank."""

    def __init__(self, of: Callable[[Site], Any]) -> None:
        self._of = of
        self._numbers: dict[Any, int] = {False: 0, True: 1}
        self._values = array("q")
        self._array: Ints = np.zeros(0, np.int64)

    def of_all(self, rows: list[Site]) -> Ints:
        if len(self._values) < len(rows):
            for site in rows[len(self._values) :]:
                value = self._of(site)
                number = (
                    -1 if value is None else self._numbers.setdefault(value, len(self._numbers))
                )
                self._values.append(number)
            self._array = np.array(self._values, np.int64)
        return self._array
