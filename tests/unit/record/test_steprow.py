from typing import Any

import torch

from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.fingerprint.record.events.steprow import StepRow
from fpdiff.store.columns import EventColumns

Listed = list[tuple[Point, bytes]]
OUTPUT = Point("forward", "output", "0", "Linear", 0, "out.0")
LOSS = Point("forward", "loss", "", "", 0, "loss.0")
GENERATOR = Point("init", "generator", "", "", 0, "torch.cpu")
METRIC = Point("other", "metric", "", "", 0, "speed")
A, B = digest_bytes(b"a"), digest_bytes(b"b")


def row_of(*flushes: Listed, chain: bytes = bytes(16), microbatch: int = 0) -> dict[str, Any]:
    sites = SiteTable(lambda row: None)
    row = StepRow(5, 100, chain)
    first = 100
    for flush in flushes:
        columns = EventColumns(5, first)
        for point, digest in flush:
            number = sites.number((point, 0, "", torch.Size()))
            columns.append(microbatch, number, digest, [], 0)
        row.add(columns, sites)
        first += len(flush)
    return row.row(ended=True)


def test_a_row_counts() -> None:
    row = row_of([(OUTPUT, A), (LOSS, B)], microbatch=2)
    counted = {name: row[name] for name in ("step", "first_seq", "events", "microbatches")}
    assert counted == {"step": 5, "first_seq": 100, "events": 2, "microbatches": 3}


def test_an_empty_step_is_a_step() -> None:
    row = row_of()
    assert (row["events"], row["microbatches"]) == (0, 0) and len(row["content"]) == 16


def test_flushes_do_not_show() -> None:
    events = [(OUTPUT, A), (LOSS, B), (OUTPUT, B)]
    assert row_of(events) == row_of(events[:1], [], events[1:])


def test_content_and_structure_are_told_apart() -> None:
    row = row_of([(OUTPUT, A)])
    other_bits = row_of([(OUTPUT, B)])
    other_site = row_of([(OUTPUT._replace(slot="out.1"), A)])
    assert row["content"] != other_bits["content"] and row["structure"] == other_bits["structure"]
    assert row["content"] == other_site["content"] and row["structure"] != other_site["structure"]


def test_order_and_microbatch_matter() -> None:
    row = row_of([(OUTPUT, A), (LOSS, B)])
    swapped = row_of([(LOSS, B), (OUTPUT, A)])
    assert row["content"] != swapped["content"] and row["structure"] != swapped["structure"]
    assert row["structure"] != row_of([(OUTPUT, A), (LOSS, B)], microbatch=1)["structure"]


def test_generators_and_metrics_are_not_in_the_totals() -> None:
    row = row_of([(OUTPUT, A)])
    more = row_of([(GENERATOR, A), (OUTPUT, A), (METRIC, B)])
    for name in ("content", "structure", "chain", "content_forward"):
        assert row[name] == more[name]
    assert more["content_generator"] != more["content_metrics"]
    assert "content_other" not in more and "content_generator" not in row


def test_groups_have_digests_of_their_own() -> None:
    row = row_of([(OUTPUT, A), (LOSS, B)])
    other = row_of([(OUTPUT, B), (LOSS, B)])
    assert row["content_loss"] == other["content_loss"]
    assert row["content_forward"] != other["content_forward"]
    assert row["structure_forward"] == other["structure_forward"]


def test_the_chain_goes_through_every_step_before() -> None:
    row = row_of([(OUTPUT, A)])
    assert row["chain"] != row_of([(OUTPUT, A)], chain=A)["chain"]
    assert row["content"] == row_of([(OUTPUT, A)], chain=A)["content"]
