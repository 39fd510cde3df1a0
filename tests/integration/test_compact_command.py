"""The command compact and the option --count, as a user gives them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic import Shape, write_rank, write_run
from synthetic_runs import Job, at, rewrite_json, twist

from fpdiff.cli.main import run as fpdiff


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = fpdiff([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_compact_says_what_it_did_and_show_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", ranks=3)
    code, out, err = said(capsys, "compact", run)
    assert (code, err) == (0, "")
    assert out.startswith("compacted: 18 files of rank 0-2 in ")
    assert said(capsys, "compact", run)[1].startswith("compact already: 18 files")
    assert "  compact " in said(capsys, "show", run)[1]
    assert json.loads(said(capsys, "show", run, "--json")[1])["compact"] == [0, 1, 2]
    for folder in ("journal", "sites", "events", "steps"):
        shutil.rmtree(run / folder / "rank=00001")
    write_rank(run, 1, Shape(steps=2))
    shown = said(capsys, "show", run)[1]
    assert "rank 0, 2; rank 1 not: run `fpdiff compact` again" in shown
    shown = said(capsys, "show", write_run(tmp_path / "plain"))[1]
    assert "  compact " not in shown


def test_compact_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", ranks=2, shape=Shape(steps=2))
    found = json.loads(said(capsys, "compact", run, "--json")[1])
    assert found == {
        "ranks": [0, 1],
        "left_out": [],
        "files": 4,
        "size_bytes": found["size_bytes"],
        "is_new": True,
    }


def test_compact_refuses_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    rewrite_json(run / "run.json", ended=None)
    for path, reason in ((run, "has not ended"), (tmp_path, "is not a run"), ("gone", "no run at")):
        code, out, err = said(capsys, "compact", path)
        assert (code, out) == (2, "") and reason in err and len(err.splitlines()) == 1


def test_a_damaged_copy_is_named_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    said(capsys, "compact", run)
    (run / "compact" / "steps.parquet").write_bytes(b"PAR1")
    code, _, err = said(capsys, "compare", run, run)
    assert code == 2 and "steps.parquet is damaged" in err and "run `fpdiff compact` again" in err
    assert said(capsys, "certify", run)[0] != 2
    assert said(capsys, "compact", run)[0] == 0
    assert said(capsys, "compare", run, run)[0] == 0


@pytest.mark.parametrize("planted", [False, True])
def test_count_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], planted: bool) -> None:
    edit: Any = at(2, None, twist("l0.weight'")) if planted else None
    a, b = Job().arm(tmp_path / "a"), Job(edit=edit).arm(tmp_path / "b")
    code, out, _ = said(capsys, "compare", a, b, "--count", "--json")
    counted = json.loads(out)["counted"]
    assert code == planted and bool(counted["differing"]) == planted
    text = f"{counted['differing']} of {counted['events']} events differ, in 2 steps over all"
    assert (text in " ".join(said(capsys, "compare", a, b, "--count")[1].split())) == planted
    assert json.loads(said(capsys, "compare", a, b, "--json")[1])["counted"] is None
