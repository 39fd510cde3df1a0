"""Tables of results: for the terminal, for a page, and the results themselves as JSON."""

import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich import table as rich_table
from rich.console import Console


@dataclass
class Table:
    """Cells of text; a column without any is left out."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row."""
        assert len(cells) == len(self.columns), cells
        self.rows.append(cells)

    def markdown(self) -> str:
        """Return it as a page shows it, its title in front."""
        columns, rows = self._filled()
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"**{self.title}**\n\n{text}\n"

    def show(self) -> None:
        """Print it."""
        columns, rows = self._filled()
        shown = rich_table.Table(*columns, title=self.title, title_justify="left", box=box.SIMPLE)
        for row in rows:
            shown.add_row(*row)
        # In a pipe rich assumes 80 columns, which would fold the table.
        Console(width=None if sys.stdout.isatty() else 200).print(shown)

    def _filled(self) -> tuple[list[str], list[list[str]]]:
        kept = [n for n in range(len(self.columns)) if n == 0 or any(row[n] for row in self.rows)]
        return [self.columns[n] for n in kept], [[row[n] for n in kept] for row in self.rows]


def deliver(found: Sequence[Any], table: Table, path: Path | None) -> None:
    """Print a table, or write the dataclasses that it was made of where the suite reads them."""
    if path is None:
        table.show()
    else:
        path.write_text(json.dumps([dataclasses.asdict(each) for each in found], indent=1) + "\n")


def numbers(text: str) -> list[int]:
    """Return the numbers of an option that takes several, such as 1,2,3."""
    return [int(part) for part in text.split(",")]


def spread(values: Sequence[float]) -> str:
    """Return the median, and the smallest and largest if there are several."""
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"
