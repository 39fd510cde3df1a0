"""Runs to certify, and what is said of them."""

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from synthetic_runs import Job

from fpdiff.fingerprint.certify.certificate import Certificate
from fpdiff.fingerprint.certify.certify import certify_run
from fpdiff.store.run import Run


def job(root: Path, ranks: int = 2, **options: Any) -> Path:
    """Write a run whose record is whole, in segments of two steps."""
    fields: dict[str, Any] = {"ranks": range(ranks), "parquet": True, "level": "op"}
    fields["environment"] = {"world_size": ranks}
    return Job(**(fields | options)).arm(root)


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


def flip(path: Path) -> None:
    """Flip a bit in the last page of the first column of bytes."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    column = next(c for c in columns if c.physical_type.endswith("BYTE_ARRAY"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 20] ^= 1
    path.write_bytes(data)


def drop_step(path: Path) -> None:
    """Leave a step row out, with checksums that are right."""
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path, write_page_checksum=True)
