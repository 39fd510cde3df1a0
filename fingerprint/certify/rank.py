"""What is kept of a rank while the others are read: how it ended and which steps it has."""

from dataclasses import dataclass, field
from typing import Any

from fpdiff.store.checks import whole
from fpdiff.store.run import RankRecord
from fpdiff.store.schema import MAX_RANKS
from fpdiff.store.summary import state_of


@dataclass
class Rank:
    """One rank.

    Attributes:
        rank: its number.
        state: "finished", "stopped", "open" or, if its file says nothing legible, "unreadable".
        world_size: as the rank saw it, None if it does not say.
        blind_spots: reason to count.
        steps: its closed steps, in order.
        tail: the last of them if the end of the program closed it, else None.
        has_rows: its step rows could be read.
        read: steps whose events were read.
    """

    rank: int
    state: str
    world_size: int | None = None
    blind_spots: dict[str, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    tail: int | None = None
    has_rows: bool = False
    read: set[int] = field(default_factory=set)

    def take_rows(self, rows: list[dict[str, Any]]) -> None:
        """Note which steps there are."""
        self.has_rows = True
        self.steps = [row["step"] for row in rows]
        if rows and not rows[-1]["ended"] and self.state == "finished":
            self.tail = self.steps[-1]

    def whole_steps(self) -> list[int]:
        """Return the steps without the tail, of which nothing says that it is whole."""
        return self.steps if self.tail is None else self.steps[:-1]


def describe(record: RankRecord) -> Rank:
    """Return what a rank says of itself.

    Raises:
        StoreError: its JSON file is damaged.
    """
    size = whole(record.environment.get("world_size"))
    return Rank(
        record.rank,
        state_of(record),
        size if size is not None and 0 < size <= MAX_RANKS else None,
        record.blind_spots,
    )
