"""Files that two runs have byte for byte alike are decoded once; none is taken for another."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from synthetic import Shape, write_run

from fpdiff.store.errors import StoreError
from fpdiff.store.parquet import Known, TableFile
from fpdiff.store.places import Place
from fpdiff.store.run import RankRecord, Run
from fpdiff.store.schema import TABLES, VERSION, VERSION_KEY
from fpdiff.store.writer import SegmentLimits


def steps_file(root: Path, segment: int = 0) -> Path:
    return root / "steps" / "rank=00000" / f"seg-{segment:05d}.parquet"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """The files that are decoded, in order."""
    found: list[Place] = []
    original = TableFile._read

    def spy(self: TableFile, columns: tuple[str, ...] | None) -> object:
        found.append(self.path)
        return original(self, columns)

    monkeypatch.setattr(TableFile, "_read", spy)
    return found


def records(tmp_path: Path) -> tuple[RankRecord, RankRecord]:
    known: Known = {}
    a, b = (Run.open(tmp_path / name).ranks[0].anew(known=known) for name in "ab")
    return a, b


def test_only_files_that_differ_are_decoded_again(tmp_path: Path, decoded: list[Place]) -> None:
    short, long = Shape(steps=6), Shape(steps=5)
    write_run(tmp_path / "a", shape=short)
    write_run(tmp_path / "b", shape=long)
    a, b = records(tmp_path)
    steps = a.steps(["content"]), b.steps(["content"])
    assert [table["step"].to_pylist() for table in steps] == [[*range(6)], [*range(5)]]
    # Segments hold two steps: B's last has one.
    assert decoded == [
        *(steps_file(tmp_path / "a", n) for n in range(3)),
        steps_file(tmp_path / "b", 2),
    ]
    assert steps[1].equals(Run.open(tmp_path / "b").ranks[0].steps(["content"]))


def test_other_columns_and_tables_of_the_same_bytes_are_read(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name)
    a, b = records(tmp_path)
    assert "content" in a.steps(["content"]).column_names
    assert b.steps(["chain"]).column_names == ["step", "first_seq", "events", "chain"]
    assert b.sites().equals(a.sites())
    events = tmp_path / "b" / "events" / "rank=00000" / "seg-00000.parquet"
    steps_file(tmp_path / "b").write_bytes(events.read_bytes())
    a, b = records(tmp_path)
    assert a.events(0).num_rows
    with pytest.raises(StoreError, match=r"b/steps/.*seg-00000.parquet is not an fpdiff steps"):
        b.steps()


def test_a_shift_is_each_run_s_own(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name)
    known: Known = {}
    a = Run.open(tmp_path / "a").ranks[0].anew(known=known)
    b = Run.open(tmp_path / "b").ranks[0].anew(known=known, shift=7)
    assert a.steps(["content"])["step"].to_pylist() == [*range(5)]
    assert b.steps(["content"])["step"].to_pylist() == [*range(7, 12)]


def test_damage_of_either_run_is_found_after_the_other_was_read(tmp_path: Path) -> None:
    limits = SegmentLimits(steps=9)
    for name in "ab":
        write_run(tmp_path / name, shape=Shape(limits=limits))
    whole = steps_file(tmp_path / "b").read_bytes()
    expected = Run.open(tmp_path / "a").ranks[0].steps()
    refused = 0
    for place in range(0, len(whole), 29):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        steps_file(tmp_path / "b").write_bytes(damaged)
        a, b = records(tmp_path)
        assert a.steps().equals(expected)
        try:
            # What no row depends on, such as a statistic, may be other.
            assert b.steps().equals(expected)
        except StoreError as error:
            refused += 1
            assert str(error).startswith(f"{steps_file(tmp_path / 'b')} ")
    assert refused > len(whole) // 29 // 3
    steps_file(tmp_path / "b").write_bytes(whole[:-1])
    steps_file(tmp_path / "a").write_bytes(whole[:-1])
    for record in records(tmp_path):
        with pytest.raises(StoreError, match=f"{record.root}/steps/.*seg-00000.parquet is damaged"):
            record.steps()


@pytest.mark.parametrize("table", ["sites", "steps", "events"])
def test_rows_read_alike_however_they_are_encoded(tmp_path: Path, table: str) -> None:
    write_run(tmp_path)
    files = [tmp_path / table / "rank=00000" / f"seg-0000{n}.parquet" for n in range(3)]
    new = [TableFile(path.parent, path.name, table).read() for path in files]
    for path, rows in zip(files, new, strict=True):
        schema = pq.read_schema(path)
        assert schema.equals(TABLES[table]) and schema.metadata == TABLES[table].metadata
        # As they were written before: with a second copy of the schema, in Arrow's own form.
        pq.write_table(rows, path, compression="zstd", write_page_checksum=True)
        assert b"ARROW:schema" in pq.read_metadata(path).metadata
    old = [TableFile(path.parent, path.name, table).read() for path in files]
    for before, after in zip(old, new, strict=True):
        assert before.equals(after) and before.schema.equals(after.schema, check_metadata=True)


@pytest.mark.parametrize("table", ["sites", "steps", "events"])
@pytest.mark.parametrize("what", ["name", "type", "nulls", "order", "missing", "version"])
def test_a_foreign_footer_is_refused_after_good_ones(tmp_path: Path, table: str, what: str) -> None:
    write_run(tmp_path)
    good, bad = (tmp_path / table / "rank=00000" / f"seg-0000{n}.parquet" for n in (0, 1))
    rows = pq.ParquetFile(bad).read()
    place = rows.schema.get_field_index("phase" if table == "sites" else "step")
    field, column = rows.schema.field(place), rows.column(place)
    if what == "name":
        field = field.with_name("other")
    elif what == "type":
        column = column.cast("binary" if table == "sites" else "int32")
        field = field.with_type(column.type)
    elif what == "nulls":
        field = field.with_nullable(True)
    rows = rows.set_column(place, field, column)
    if what == "order":
        rows = rows.select([*rows.column_names[1:], rows.column_names[0]])
    elif what == "missing":
        rows = rows.drop_columns([rows.column_names[-1]])
    elif what == "version":
        rows = rows.replace_schema_metadata({VERSION_KEY: str(VERSION + 1)})
    pq.write_table(rows, bad, write_page_checksum=True)
    TableFile(good.parent, good.name, table).read()
    reason = "newer fpdiff" if what == "version" else "columns are others"
    with pytest.raises(StoreError, match=reason):
        TableFile(bad.parent, bad.name, table).read()
