from pathlib import Path

import pytest
import torch
from torch import nn

from fpdiff.fingerprint.record.events.source import running_line


def test_a_line_is_the_callers_own() -> None:
    told = running_line()
    assert told is not None and Path(told.rpartition(":")[0]).name == Path(__file__).name


def test_torch_is_looked_through() -> None:
    class Told(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    lines = []
    net = nn.Sequential(Told())
    net[0].register_forward_hook(lambda *_: lines.append(running_line()))
    net(torch.ones(1))
    here = test_torch_is_looked_through.__code__.co_firstlineno
    assert lines[0] is not None and int(lines[0].rpartition(":")[2]) - here == 7


def run_as(path: str) -> str | None:
    """Return the line that code in a file of that name would be told."""

    def told() -> str | None:
        return running_line()

    told.__code__ = told.__code__.replace(co_filename=path, co_firstlineno=1)
    return told()


def test_paths_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    packages = Path(torch.__file__).parents[1]
    assert run_as(str(tmp_path / "lib" / "model.py")) == "lib/model.py:2"
    assert run_as(str(packages / "other" / "model.py")) == "other/model.py:2"
    through_triton = run_as(str(packages / "triton" / "runtime" / "jit.py"))
    assert through_triton is not None and through_triton.startswith(__file__)
    assert run_as("/elsewhere/model.py") == "/elsewhere/model.py:2"
    assert run_as("<string>") == "<string>:2"


def test_a_line_is_told_from_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run_as("/elsewhere/model.py") == "/elsewhere/model.py:2"
