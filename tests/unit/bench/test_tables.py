"""bench/tables.py."""

import pytest
from tables import Table, numbers, spread


def test_a_column_without_a_cell_is_left_out() -> None:
    table = Table("Ranks", ("", "a", "b", "c"))
    table.add("x", "", "1", "")
    table.add("y", "", "", "2")
    shown = ["|  | b | c |", "| --- | --- | --- |", "| x | 1 |  |", "| y |  | 2 |"]
    assert table.markdown() == "\n".join(["**Ranks**", "", *shown, ""])


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(AssertionError, match="1"):
        Table("Ranks", ("a", "b")).add("1")


def test_numbers_and_their_spread() -> None:
    assert numbers("1,20") == [1, 20]
    assert spread([0.25]) == "0.25"
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
