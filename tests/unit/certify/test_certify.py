"""One run alone: what is sound, and each kind of damage by its name."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import digest, make_old, site, step_row, write_run_json
from synthetic_runs import Edit, Ev, Job, Writer, at, ev, find, insert, remove, rewrite_json, twist

from fpdiff.cli.main import run as run_command
from fpdiff.fingerprint.certify.certificate import CHECKS, Certificate
from fpdiff.fingerprint.certify.certify import certify_run
from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.store.columns import EventColumns
from fpdiff.store.errors import StoreError
from fpdiff.store.run import Run
from fpdiff.store.schema import VERSION
from fpdiff.store.writer import RankWriter, SegmentLimits

Damage = Callable[[Path], object]


def job(root: Path, ranks: int = 2, **options: Any) -> Path:
    """Write a run whose record is whole, in segments of two steps."""
    fields: dict[str, Any] = {"ranks": range(ranks), "parquet": True, "level": "op"}
    fields["environment"] = {"world_size": ranks}
    return Job(**(fields | options)).arm(root)


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SegmentLimits.__init__, "__kwdefaults__", {"steps": 2, "size_bytes": 64 << 20}
    )


def certified(root: Path) -> Certificate:
    return certify_run(Run.open(root))


def results(found: Certificate) -> dict[str, str]:
    return {check.name: check.result for check in found.checks}


def texts(found: Certificate) -> list[str]:
    """Return the findings, without the lines of the program, which are here those of the tests."""
    found_texts = [f"{finding.check}: {finding.text}" for finding in found.findings]
    return [re.sub(r" \(tests/\S+\)", "", text) for text in found_texts]


def part(root: Path, table: str, rank: int = 0, segment: int = 0) -> Path:
    return root / table / f"rank=0000{rank}" / f"seg-0000{segment}.parquet"


def rank_json(root: Path, rank: int = 0) -> Path:
    return root / "ranks" / f"rank=0000{rank}.json"


def test_a_sound_run(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run"))
    assert texts(found) == []
    assert found.summary == "216 events on 2 ranks over 4 steps (0-3), rung op"
    assert (found.verdict, found.exit_code, found.ranks, found.steps) == (
        "sound",
        0,
        [0, 1],
        [0, 3],
    )
    assert results(found) == dict.fromkeys(CHECKS, "sound") | {
        "collectives": "nothing",
        "recomputation": "nothing",
    }
    assert {check.name: check.rests_on for check in found.checks} == {
        "files": "12 files read",
        "events": "216 events against 8 step rows",
        "ending": "2 of 2 ranks finished",
        "presence": "2 of 2 ranks, steps 0-3",
        "collectives": "there was none between ranks that were read",
        "recomputation": "there was none",
        "replicas": "2 parameters that began equal on ranks 0-1",
    }


def test_a_single_rank_has_no_replicas(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", ranks=1))
    assert texts(found) == []
    assert found.checks[-1].rests_on == "only one rank was recorded"
    assert found.checks[-1].result == "nothing"


@pytest.mark.parametrize(
    ("level", "why"),
    [
        ("step", "rung step records none"),
        ("layer", "there was none between ranks that were read"),
    ],
)
def test_a_rung_without_operators(tmp_path: Path, level: str, why: str) -> None:
    found = certified(job(tmp_path / "run", level=level))
    assert found.verdict == "sound"
    assert (found.checks[4].result, found.checks[4].rests_on) == ("nothing", why)
    assert found.notes[0].startswith(f"rung {level}: ")


# The record is whole


def flip(path: Path) -> None:
    """Flip a bit in the last page of the first column of bytes."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    column = next(c for c in columns if c.physical_type.endswith("BYTE_ARRAY"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 20] ^= 1
    path.write_bytes(data)


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


def drop_step(path: Path) -> None:
    """Leave a step row out, with checksums that are right."""
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path, write_page_checksum=True)


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


# All of it is there


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


# Collectives


REDUCE = {"op": "c10d.allreduce_.default", "members": "0,1", "phase": "backward"}


def exchange(events: list[Ev], *, before: str = "reduced l0", **changes: Any) -> None:
    """Add an all_reduce of a bucket: what the rank gave, its arguments, what it got."""
    fields: dict[str, Any] = REDUCE | changes
    insert(
        events,
        before,
        ev("gave", "sent", slot="tensors.0", value="own", reads=["grad l0"], **fields),
        ev("with", "arguments", slot="reduce_op", value="sum", dtype="", shape=(), **fields),
        ev("got", "received", slot="tensors.0", value="all", reads=[], **fields),
    )


def exchanging(edit: Edit | None = None, **changes: Any) -> Edit:
    def both(step: int, rank: int, events: list[Ev]) -> None:
        exchange(events, **changes)
        if edit is not None:
            edit(step, rank, events)

    return both


def change(name: str, **fields: Any) -> Callable[[list[Ev]], None]:
    def body(events: list[Ev]) -> None:
        index = events.index(find(events, name))
        events[index] = dataclasses.replace(events[index], **fields)

    return body


def test_collectives_that_agree(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=exchanging()))
    assert found.verdict == "sound"
    assert found.checks[4].rests_on == "8 calls, 12 results compared"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            at(2, 1, twist("got")),
            (
                "rank 1, step 2: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank"
                " received other bits than rank 0"
            ),
        ),
        (
            at(2, 1, change("gave", shape=(4, 4))),
            (
                "rank 1, step 2: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank"
                " gave float32[4, 4], unlike rank 0"
            ),
        ),
        (
            at(2, 1, change("with", value="max")),
            (
                "rank 1, step 2: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank had"
                " other arguments (reduce_op) than rank 0"
            ),
        ),
        (
            at(None, 1, lambda events: remove(events, "got")),
            (
                "rank 1, steps 0-3: c10d.allreduce_ (in the backward, call 0, ranks 0-1): the rank"
                " has no event of what it received"
            ),
        ),
        (
            at(2, 1, lambda events: remove(events, "gave", "with", "got")),
            "rank 1, step 2: it made 0 of the 1 call of c10d.allreduce_ of ranks 0-1",
        ),
    ],
    ids=["bits", "shape", "arguments", "unread", "absent"],
)
def test_collectives_that_disagree(tmp_path: Path, edit: Edit, expected: str) -> None:
    found = certified(job(tmp_path / "run", edit=exchanging(edit)))
    assert texts(found)[0] == f"collectives: {expected}"
    assert {finding.check for finding in found.findings} == {"collectives"}


def test_what_a_member_did_not_read_is_counted_and_no_finding(tmp_path: Path) -> None:
    edit = exchanging(at(None, 1, lambda events: remove(events, "got")))
    run = job(tmp_path / "run", edit=edit)
    reason = "collective output that no op read in its step"
    rewrite_json(rank_json(run, 1), blind_spots={reason: 4})
    found = certified(run)
    assert found.verdict == "sound"
    assert (
        found.checks[4].rests_on == "8 calls, 8 results compared, 4 not read where they should be"
    )


def test_a_scatter_gives_each_member_its_own(tmp_path: Path) -> None:
    edit = exchanging(at(None, 1, twist("got")), op="c10d._reduce_scatter_base_.default")
    assert certified(job(tmp_path / "run", edit=edit)).verdict == "sound"


def test_members_that_were_not_recorded_are_not_missed(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=exchanging(members="0,1,2,3")))
    assert found.verdict == "sound"


def message(step: int, rank: int, events: list[Ev]) -> None:
    kind, op = ("sent", "c10d.send.default") if rank == 0 else ("received", "c10d.recv_.default")
    fields: dict[str, Any] = {
        "members": "0>1",
        "phase": "other",
        "value": ("message", step),
        "reads": [],
    }
    insert(events, "reduced l0", ev("it", kind, slot="tensors.0", op=op, **fields))


def test_a_collective_whose_other_members_were_not_read_is_not_checked(tmp_path: Path) -> None:
    run = job(tmp_path / "run", edit=exchanging())
    for segment in (0, 1):
        flip(part(run, "events", 1, segment))
    assert results(certified(run))["collectives"] == "nothing"


def test_messages(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "sound", edit=message))
    assert found.verdict == "sound"
    assert found.checks[4].rests_on == "4 messages"

    def garble(step: int, rank: int, events: list[Ev]) -> None:
        message(step, rank, events)
        if (step, rank) == (1, 1):
            find(events, "it").twist = "garbled"
        if (step, rank) == (3, 1):
            remove(events, "it")

    assert texts(certified(job(tmp_path / "garbled", edit=garble))) == [
        "collectives: rank 1, step 1: 1 message from rank 0 arrived with other bits",
        "collectives: rank 1, step 3: 1 message from rank 0 never arrived",
    ]


def test_a_message_may_arrive_in_the_step_after(tmp_path: Path) -> None:
    def late(step: int, rank: int, events: list[Ev]) -> None:
        message(step, rank, events)
        if rank == 1:
            find(events, "it").value = ("message", step - 1)
            if step == 0:
                remove(events, "it")

    found = certified(job(tmp_path / "run", edit=late))
    assert [finding.steps for finding in found.findings] == [[3]]
    assert texts(found) == ["collectives: rank 1, step 3: 1 message from rank 0 never arrived"]


# Recomputation


def recomputing(*twisted: str, kind: str = "result", **changes: Any) -> Edit:
    """Return the edit that records l0's op and output, and both again in the backward."""

    def edit(step: int, rank: int, events: list[Ev]) -> None:
        op: dict[str, Any] = {"op": "aten.mul.Tensor", "value": ("product", step)} | changes
        out = find(events, "l0.out")
        insert(events, "l0.out", ev("mul", kind, "l0", **op))
        back: dict[str, Any] = {"phase": "recompute"}
        again = [
            ev("mul again", kind, "l0", **(op | back)),
            dataclasses.replace(out, name="out again", **back),
        ]
        insert(events, "back l0", *again)
        for name in twisted:
            find(events, name).twist = "other"

    return edit


def test_a_recomputation_that_is_equal(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", ranks=1, edit=recomputing()))
    assert found.verdict == "sound"
    assert found.checks[5].rests_on == "8 recomputed events looked for in the forward"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            recomputing("mul again", "out again"),
            "in the recomputation of module l0, aten.mul gave another out.0 than in its forward",
        ),
        (
            recomputing("out again"),
            "the recomputation of module l0 gave another out.0 than its forward",
        ),
        (
            recomputing(
                "mul again", kind="generator", slot="torch.cpu", op="aten.bernoulli_.float"
            ),
            (
                "in the recomputation of module l0, aten.bernoulli_ drew from another state of the"
                " generator than in its forward"
            ),
        ),
        (
            recomputing("mul again", kind="arguments", slot="p"),
            (
                "in the recomputation of module l0, aten.mul had another value of p than in its"
                " forward"
            ),
        ),
    ],
    ids=["op", "output", "draw", "arguments"],
)
def test_a_recomputation_that_differs(tmp_path: Path, edit: Edit, expected: str) -> None:
    found = certified(job(tmp_path / "run", ranks=1, edit=edit))
    assert texts(found) == [f"recomputation: rank 0, steps 0-3: {expected}"]


def test_a_recomputation_that_read_what_another_call_had_left(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        for number, mark in ((0, ""), (1, "#1")):
            out = find(events, f"l0.out{mark}")
            source = find(events, "l0.out#1") if step == 2 else out
            again: dict[str, Any] = {
                "name": f"again{mark}",
                "phase": "recompute",
                "microbatch": number,
            }
            again["reads"] = source.reads
            insert(events, f"back l0{mark}", dataclasses.replace(out, **again))

    def late(step: int, rank: int, events: list[Ev]) -> None:
        edit(step, rank, events)
        if step == 2:  # The second batch must have come when the first call is repeated.
            batch = find(events, "batch#1")
            events.remove(batch)
            insert(events, "l0.out", batch)

    found = certified(job(tmp_path / "run", ranks=1, microbatches=2, edit=late))
    assert texts(found) == [
        (
            "recomputation: rank 0, step 2: the recomputation of module l0 gave what another call"
            " of it had given"
        )
    ]


# Replicas


def test_a_replica_that_drifts(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=at(2, 1, twist("l1.weight'"))))
    assert texts(found) == ["replicas: rank 1, step 3: parameter l1.weight drifted from rank 0"]
    assert found.summary == "rank 1, step 3: parameter l1.weight drifted from rank 0"


def test_the_few_drift_from_the_many(tmp_path: Path) -> None:
    edit = at(1, 0, lambda e: (twist("l0.weight'")(e), twist("l1.weight'")(e)))
    assert texts(certified(job(tmp_path / "run", ranks=3, edit=edit))) == [
        "replicas: rank 0, step 2: parameter l0.weight and 1 more drifted from rank 1"
    ]


def test_a_drift_in_the_last_step(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=at(3, 1, twist("l1.weight'"))))
    assert texts(found) == [
        "replicas: rank 1, step 3: parameter l1.weight drifted from rank 0 in the optimizer's step"
    ]


def shards(step: int, rank: int, events: list[Ev]) -> None:
    if step == 0:
        find(events, "l1.weight").value = ("shard", rank)


def test_shards_are_no_replicas(tmp_path: Path) -> None:
    found = certified(job(tmp_path / "run", edit=shards))
    assert found.verdict == "sound"
    assert found.checks[-1].rests_on == "1 parameter that began equal on ranks 0-1"


def test_a_replica_beside_shards_may_drift_too(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        shards(step, rank, events)
        at(1, 1, twist("l0.weight'"))(step, rank, events)

    found = certified(job(tmp_path / "run", edit=edit))
    assert texts(found) == ["replicas: rank 1, step 2: parameter l0.weight drifted from rank 0"]


@pytest.mark.parametrize("constant", [bytes(4), b"\0\0\x80\x3f"], ids=["zeros", "ones"])
@pytest.mark.parametrize("parts", [1, 2])
def test_shards_that_began_constant_are_no_replicas(
    tmp_path: Path, constant: bytes, parts: int
) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        find(events, "l0.weight").value = digest_bytes(constant * (4 * 8 // parts))
        at(1, 1, twist("l0.weight'"))(step, rank, events)

    def sharded(step: int, rank: int, events: list[Ev]) -> None:
        edit(step, rank, events)
        shards(step, rank, events)

    found = certified(job(tmp_path / "sharded", edit=sharded))
    assert found.verdict == "sound"
    assert found.checks[-1].result == "nothing"
    # Where all else is equal too, it is a replica.
    found = certified(job(tmp_path / "equal", edit=edit))
    assert texts(found) == ["replicas: rank 1, step 2: parameter l0.weight drifted from rank 0"]


# The answer


def test_findings_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpdiff.fingerprint.certify.ledger.MAX_FINDINGS", 2)
    run = job(tmp_path / "run")
    drop_step(part(run, "steps", 0, 1))
    found = certified(run)
    assert len(found.findings) == 3 and found.num_findings == 4
    assert results(found)["events"] == results(found)["presence"] == "unsound"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = job(tmp_path / "run")
    assert run_command(["certify", str(run)]) == 0
    assert capsys.readouterr().out.startswith("sound: 216 events on 2 ranks over 4 steps (0-3)")
    rewrite_json(rank_json(run, 1), stopped="the disk is full", blind_spots={"fake tensor": 1200})
    assert run_command(["certify", str(run)]) == 1
    told = capsys.readouterr().out
    assert told.splitlines()[0] == "unsound: rank 1: the disk is full"
    assert "  ending  rank 1: the disk is full" in told
    assert "  1,200  fake tensor" in told
    assert max(map(len, told.splitlines())) <= 80
    assert run_command(["certify", str(run), "--json"]) == 1
    certificate = json.loads(capsys.readouterr().out)
    assert (certificate["schema"], certificate["verdict"]) == (1, "unsound")
    assert certificate["findings"][0]["ranks"] == [1]
    assert run_command(["certify", str(tmp_path / "none")]) == 2


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    certify_run(Run.open(job(tmp_path / "run")), progress=lambda *now: told.append(now))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
