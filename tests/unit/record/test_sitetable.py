from typing import Any

import pytest
import torch

from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.store.schema import GROUPS, KINDS, PHASES

OUTPUT = Point("forward", "output", "layers.0", "Linear", 0, "out.0")
NO_SHAPE = torch.Size()


def table() -> tuple[SiteTable, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    return SiteTable(rows.append), rows


def test_sites_are_numbered_in_the_order_of_their_first_event() -> None:
    sites, rows = table()
    keys = [(OUTPUT._replace(call=n), 0, torch.float32, torch.Size([2])) for n in (4, 2, 4, 2)]
    assert [sites.number(key) for key in keys] == [0, 1, 0, 1]
    assert [row["call"] for row in rows] == [4, 2]


def test_a_row_describes_its_point() -> None:
    sites, rows = table()
    sites.number((OUTPUT, 3, torch.bfloat16, torch.Size([2, 5])), "train.py:34")
    assert rows == [
        {
            "site": 0,
            "phase": "forward",
            "kind": "output",
            "module": "layers.0",
            "module_class": "Linear",
            "call": 0,
            "op": None,
            "occurrence": 3,
            "slot": "out.0",
            "members": None,
            "dtype": "bfloat16",
            "shape": [2, 5],
            "source": "train.py:34",
        }
    ]


def test_what_is_no_tensor_has_no_dtype() -> None:
    sites, rows = table()
    sites.number((OUTPUT, 0, "", NO_SHAPE))
    assert (rows[0]["dtype"], rows[0]["shape"]) == ("", [])


def test_dtype_shape_and_occurrence_make_another_site() -> None:
    sites, _ = table()
    key = (OUTPUT, 0, torch.float32, torch.Size([2]))
    others = [(OUTPUT, 1, *key[2:]), (*key[:2], torch.float16, key[3]), (*key[:3], torch.Size([3]))]
    assert [sites.number(k) for k in (key, *others)] == [0, 1, 2, 3]


def test_a_description_is_the_same_whatever_the_number_and_class() -> None:
    first, second = table()[0], table()[0]
    first.number((OUTPUT, 0, "", NO_SHAPE))
    second.number((OUTPUT._replace(slot="other"), 0, "", NO_SHAPE))
    second.number((OUTPUT._replace(module_class="Fused"), 0, "", NO_SHAPE))
    assert bytes(first.descriptions()[0]) == bytes(second.descriptions()[1])
    assert bytes(second.descriptions()[0]) != bytes(second.descriptions()[1])
    assert second.descriptions().shape == (2, 16)


def groups(point: Point) -> set[str]:
    sites, _ = table()
    sites.number((point, 0, "", NO_SHAPE))
    mask = int(sites.masks()[0])
    return {group for bit, group in enumerate(GROUPS) if mask >> bit & 1}


@pytest.mark.parametrize(
    ("phase", "kind", "slot", "expected"),
    [
        ("init", "parameter", "weight", {"init", "parameters"}),
        ("optimizer", "parameter", "weight", {"optimizer", "parameters"}),
        ("init", "generator", "torch.cpu", {"generator"}),
        ("forward", "generator", "torch", {"forward"}),
        ("other", "metric", "loss", {"metrics"}),
        ("other", "mark", "x", {"other"}),
        ("forward", "loss", "loss.0", {"forward", "loss"}),
        ("forward", "input", "arg.0", {"forward", "batch"}),
        ("eval", "input", "arg.x", {"eval"}),
        ("recompute", "input", "arg.0", {"recompute"}),
        ("forward", "input", "0.arg.0", {"forward"}),
        ("backward", "gradient", "grad.0.out.0", {"backward"}),
    ],
)
def test_groups_of_a_site(phase: str, kind: str, slot: str, expected: set[str]) -> None:
    assert groups(Point(phase, kind, "", "", 0, slot)) == expected


def test_every_phase_and_kind_has_a_group() -> None:
    for phase in PHASES:
        for kind in KINDS:
            assert groups(Point(phase, kind, "", "", 0, "x"))


def test_names_that_are_no_text_can_be_written() -> None:
    sites, rows = table()
    odd = OUTPUT._replace(module="é.\ud800", module_class="\udfff", slot="out.\udc80")
    sites.number((odd, 0, torch.float32, NO_SHAPE), "caf\udce9.py:1")
    names = [rows[0][name] for name in ("module", "module_class", "slot", "source")]
    assert names == ["é.\\ud800", "\\udfff", "out.\\udc80", "caf\\udce9.py:1"]
