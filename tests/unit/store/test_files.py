import json
import os
from pathlib import Path

import pytest

from fpdiff.store.files import replacing, write_json


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(KeyError, match="bug"), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyError("bug")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="full"), replacing(path):
        raise OSError("full")
    with replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert [*tmp_path.iterdir()] == [path]


def test_a_longer_text_fits_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr(os, "replace", full_disk)
    write_json(path, {"a": 1, "stopped": "x" * 1000})
    assert json.loads(path.read_text())["stopped"] == "x" * 1000
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    with pytest.raises(OSError, match="no room left on the disk"):
        write_json(path, {"stopped": "x" * 10_000})


def test_a_new_file_for_which_there_is_no_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        write_json(tmp_path / "a.json", {"a": 1})
    assert not list(tmp_path.iterdir())
