"""Whether a record is whole, and all of it there: each kind of damage by its name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from certified import certified, drop_step, flip, job, part, rank_json, results, texts
from synthetic import digest, make_old, site, step_row, write_run_json
from synthetic_runs import Writer, ev, rewrite_json

from fpdiff.store.columns import EventColumns
from fpdiff.store.errors import StoreError
from fpdiff.store.schema import VERSION
from fpdiff.store.writer import RankWriter

Damage = Callable[[Path], object]


def alter_digest(path: Path) -> None:
    """Change an event's digest and write the file anew, with checksums that are right."""
    table = pq.ParquetFile(path).read()
    storage = table["digest"].combine_chunks().storage.to_pylist()
    index = table["site"].to_pylist().index(max(table["site"].to_pylist()))
    storage[index] = bytes(16)
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(storage, pa.binary(16)))
    place = table.column_names.index("digest")
    table = table.set_column(place, table.schema.field("digest"), column)
    pq.write_table(table, path, write_page_checksum=True)


def drop_segment(run: Path) -> None:
    for table in ("sites", "steps", "events"):
        part(run, table).unlink()


def drop_rank(run: Path) -> None:
    for folder in run.glob("*/rank=00001"):
        shutil.rmtree(folder)
    rank_json(run, 1).unlink()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda run: flip(part(run, "events", 1, 1)),
            ["files: rank 1: {run}/events/rank=00001/seg-00001.parquet is damaged: "],
        ),
        (
            lambda run: flip(part(run, "sites", 0)),
            ["files: rank 0: {run}/sites/rank=00000/seg-00000.parquet is damaged: "],
        ),
        (
            drop_segment,
            ["files: rank 0: {run}/sites/rank=00000/seg-00000.parquet is missing: "],
        ),
        (
            lambda run: rank_json(run, 1).write_text("{"),
            ["files: rank 1: {run}/ranks/rank=00001.json is damaged: "],
        ),
        (
            lambda run: alter_digest(part(run, "events", 1, 1)),
            [
                (
                    "events: rank 1, step 2: its events are not those that its row was made of: the"
                    " row has another content_optimizer"
                )
            ],
        ),
        (
            lambda run: drop_step(part(run, "steps", 0, 1)),
            [
                "events: rank 0, step 2: it has events and no row that closes it",
                "events: rank 0, step 3: its events begin at seq 81, not at 54: a step before",
                "events: rank 0, step 3: its chain does not follow from the step before it",
                "presence: rank 0, step 2: the step is missing; other ranks have it",
            ],
        ),
        (
            drop_rank,
            ["presence: rank 1: the rank is missing; the job has 2"],
        ),
        (
            lambda run: rewrite_json(rank_json(run, 1), finished=False),
            [
                (
                    "ending: rank 1: its record has no end: it is still being recorded, or was"
                    " killed; closed are steps 0-3"
                )
            ],
        ),
        (
            lambda run: rewrite_json(rank_json(run, 1), stopped="the disk is full"),
            ["ending: rank 1: the disk is full"],
        ),
    ],
    ids=[
        *("flipped", "flipped-sites", "segment", "json", "digest", "row", "rank"),
        *("killed", "stopped"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Damage, expected: list[str]) -> None:
    run = job(tmp_path / "run")
    damage(run)
    found = certified(run)
    assert len(found.findings) == len(expected), texts(found)
    for text, start in zip(texts(found), expected, strict=True):
        assert text.startswith(start.format(run=run))
    assert (found.verdict, found.exit_code) == ("unsound", 1)
    assert f"{expected[0].partition(': ')[2]}".format(run=run) in found.summary


def test_what_is_left_of_a_damaged_rank_is_checked(tmp_path: Path) -> None:
    run = job(tmp_path / "run")
    flip(part(run, "events", 1, 1))
    found = certified(run)
    assert found.events == 108 + 54
    assert results(found)["presence"] == "sound"


def test_a_journal_that_is_cut(tmp_path: Path) -> None:
    run = job(tmp_path / "run", ranks=1, parquet=False, steps=range(5), close=False)
    path = run / "journal" / "rank=00000" / "seg-00002.arrows"
    assert certified(run).num_steps == 5
    path.write_bytes(path.read_bytes()[:-400])
    found = certified(run)
    assert texts(found) == [
        (
            "ending: rank 0: its record has no end: it is still being recorded, or was killed;"
            " closed are steps 0-3"
        )
    ]
    assert found.checks[1].rests_on == "108 events against 4 step rows"


def test_a_step_that_went_on_behind_its_row(tmp_path: Path) -> None:
    """As when a process is killed after the first of a step's two optimizers."""
    write_run_json(tmp_path, level="op", settings={})
    writer = Writer(tmp_path, 0, {"finished": False})
    writer.step(0, [(ev("loss", "loss", slot="loss.0"), digest("loss"))])
    late = EventColumns(0, 1)
    late.append(0, 0, digest("late"), [], 0)
    writer._writer.flush(late, None)
    writer.end(close=False)
    found = certified(tmp_path)
    assert [finding.check for finding in found.findings] == ["ending"]
    told = "1 event against 1 step row; 1 of steps not closed were left out"
    assert found.checks[1].rests_on == told


def test_a_finished_rank_with_a_journal_left(tmp_path: Path) -> None:
    run = job(tmp_path / "run", ranks=1, parquet=False, steps=range(5))
    assert texts(certified(run)) == [
        "ending: rank 0: it has finished, yet a segment of it is still a journal"
    ]


def test_a_step_in_the_middle_that_was_never_ended(tmp_path: Path) -> None:
    run = job(tmp_path / "run", ranks=1)
    path = part(run, "steps")
    table = pq.ParquetFile(path).read()
    place = table.column_names.index("ended")
    table = table.set_column(place, table.schema.field("ended"), pa.array([False, True]))
    pq.write_table(table, path, write_page_checksum=True)
    assert texts(certified(run)) == [
        "events: rank 0, step 0: the step was never ended, yet others come after it"
    ]


def test_a_step_that_the_program_s_end_closed_is_a_note(tmp_path: Path) -> None:
    run = job(tmp_path / "run", ranks=1)
    path = part(run, "steps", 0, 1)
    table = pq.ParquetFile(path).read()
    place = table.column_names.index("ended")
    table = table.set_column(place, table.schema.field("ended"), pa.array([True, False]))
    pq.write_table(table, path, write_page_checksum=True)
    found = certified(run)
    assert found.verdict == "sound"
    assert found.notes == ["step 3 ends with the program on rank 0: no optimizer's step ended it"]
    rewrite_json(run / "run.json", exit_code=1)
    assert texts(certified(run)) == [
        "ending: rank 0, step 3: the command failed with exit code 1 and cut the step short"
    ]


def test_no_rank_cannot_be_certified(tmp_path: Path) -> None:
    run = job(tmp_path / "run")
    for name in ("ranks", "journal", "sites", "steps", "events"):
        shutil.rmtree(run / name)
    with pytest.raises(StoreError, match="has no rank: nothing was recorded"):
        certified(run)


@pytest.mark.parametrize("version", range(1, VERSION))
def test_runs_of_older_versions(tmp_path: Path, version: int) -> None:
    run = job(tmp_path / "run")
    make_old(run, version)
    rewrite_json(run / "run.json", schema=version)
    assert texts(certified(run)) == []
    alter_digest(part(run, "events", 1, 1))
    assert [finding.check for finding in certified(run).findings] == ["events"]


def test_a_site_that_no_recorder_wrote_is_damage(tmp_path: Path) -> None:
    for number, fields in enumerate(({"phase": "backwards"}, {"members": "0>1>x"})):
        write_run_json(tmp_path / str(number), level="op", settings={})
        writer = RankWriter(tmp_path / str(number), 0)
        writer.add_site(site(0, **fields))
        columns = EventColumns(0, 0)
        columns.append(0, 0, digest(0), [], 0)
        writer.flush(columns, step_row(0, 0, 1))
        writer.close()
    found = certified(tmp_path / "0")
    assert "sites/rank=00000 is damaged: phase 'backwards' is none of" in found.summary
    assert certified(tmp_path / "1").verdict == "unsound"


def test_a_window_of_ranks_is_no_gap(tmp_path: Path) -> None:
    run = job(tmp_path / "run", environment={"world_size": 8}, settings={"ranks": [[0, 2]]})
    found = certified(run)
    assert found.verdict == "sound"
    assert found.notes == ["only ranks 0-1 were recorded, as the settings say"]


def test_ranks_without_a_process_group_know_no_size(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", environment={"world_size": 1}))
    assert found.verdict == "sound"
    assert found.checks[3].rests_on == "the job's size is not known, steps 0-3"


def test_windows_and_gaps_are_notes(tmp_path: Path) -> None:
    steps = [1, 2, 5]
    settings = {"steps": [[1, 3], [5, 6]], "modules": "l0"}
    found = certified(job(tmp_path / "run", steps=steps, settings=settings))
    assert found.verdict == "sound"
    assert found.notes == [
        "only steps 1:3,5 were recorded, as the settings say",
        "only modules that match 'l0' were recorded, as the settings say",
        "no rank has a step numbered 3-4",
    ]


def test_blind_spots_are_summed(tmp_path: Path) -> None:
    run = job(tmp_path / "run")
    rewrite_json(rank_json(run, 0), blind_spots={"freed storage": 2})
    rewrite_json(rank_json(run, 1), blind_spots={"freed storage": 1, "thread not followed": 7})
    found = certified(run)
    assert found.verdict == "sound"
    assert found.blind_spots == {"thread not followed": 7, "freed storage": 3}
