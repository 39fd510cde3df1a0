"""bench/overhead.py: the arithmetic of its table, and options that cannot be met."""

import importlib.util

import overhead
import pytest
from conditions import NO_OP, NO_RECORDER
from overhead import Measured


def _measured(condition: str, seconds: list[float], **others: object) -> Measured:
    found = Measured(size="0.5M", condition=condition, steps=12, bare=[1.0, 2.0, 4.0])
    found.seconds, found.first = seconds, [2 * each + 0.5 for each in seconds]
    for name, value in others.items():
        setattr(found, name, value)
    return found


def test_what_a_rung_adds_is_held_against_its_own_round() -> None:
    rung = {"limit": [0.1, 0.1, 0.2], "once_bytes": 2e9, "events": 100, "disk_bytes": 1500}
    table = overhead.table_of(
        [
            _measured(NO_RECORDER, [1.0, 2.0, 4.0]),
            _measured("layer", [1.2, 2.1, 4.6], **rung),
            _measured("op", [1.5, 2.5, 4.5], **rung),
            _measured(NO_OP, [1.3, 2.3, 4.3], ops=50),
            _measured("msprobe, L1", [2.0, 3.0, 8.0], disk_bytes=219_000),
        ]
    )
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    layer = rows["layer"]
    assert [layer[name] for name in ("ratio", "min", "max")] == ["1.150", "1.050", "1.200"]
    assert layer["limit"] == "1.050"  # 1.1, 1.05, 1.05
    assert layer["times limit"] == "2.00"  # 2, 1, 3
    assert (layer["MB once"], layer["GB/s"]) == ("2000.0", "20.0")
    assert layer["us an event"] == "2000.0"  # 0.2 s, 0.1 s, 0.6 s
    assert (layer["us an op"], layer["bytes an event"], layer["once, s"]) == ("", "15.0", "0.50")
    assert rows["op"]["us an op"] == "4000.0"
    assert (rows[NO_OP]["limit"], rows[NO_OP]["us an event"]) == ("", "")
    assert rows["msprobe, L1"]["kB on disk"] == "219.0"


def test_the_order_rotates() -> None:
    found = [_measured(name, [1.0]) for name in "abc"]
    orders = ["".join(each.condition for each in overhead.rotated(found, n)) for n in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


@pytest.mark.skipif(importlib.util.find_spec("msprobe") is not None, reason="msprobe is there")
def test_a_tool_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["overhead.py", "--msprobe"])
    with pytest.raises(SystemExit, match="2"):
        overhead.main()
    assert "pip install mindstudio-probe" in capsys.readouterr().err


def test_a_block_of_too_few_steps_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["overhead.py", "--steps", "2"])
    with pytest.raises(SystemExit, match="2"):
        overhead.main()
    assert "--steps 2: a block needs 4 steps" in capsys.readouterr().err
