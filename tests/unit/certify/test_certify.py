"""One run alone: what is sound, and how the answer is given."""

import json
from pathlib import Path

import pytest
from certified import certified, drop_step, job, part, rank_json, results, texts
from synthetic_runs import (
    rewrite_json,
)

from fpdiff.cli.main import run as run_command
from fpdiff.fingerprint.certify.certificate import CHECKS
from fpdiff.fingerprint.certify.certify import certify_run
from fpdiff.store.run import Run


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
