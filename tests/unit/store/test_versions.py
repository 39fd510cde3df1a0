"""Runs of older versions of the format are read."""

from pathlib import Path

import pytest
from synthetic import make_old, write_run

from fpdiff.store.run import Run
from fpdiff.store.schema import VERSION
from fpdiff.store.views import connect, query


@pytest.mark.parametrize("version", range(1, VERSION))
def test_columns_that_an_older_version_lacks_are_null(tmp_path: Path, version: int) -> None:
    write_run(tmp_path / "new")
    write_run(tmp_path / "old")
    make_old(tmp_path / "old", version)
    new, old = Run.open(tmp_path / "new"), Run.open(tmp_path / "old")
    for run in (new, old):
        run.ranks[0].sites()
    assert old.ranks[0].sites().equals(new.ranks[0].sites())
    assert old.ranks[0].sites()["source"].null_count == old.ranks[0].sites().num_rows
    with connect({"new": new, "old": old}) as connection:
        rows = query(connection, "select run, count(*), count(source) from events group by run")
        counts = {run: (events, lines) for run, events, lines in rows.rows()}
    assert counts["new"] == counts["old"] and counts["old"][1] == 0
