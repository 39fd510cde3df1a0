"""Runs on object storage from end to end: recorded there, compared, asked, and cut short."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from objectstore import ObjectStore
from processes import FPDIFF, PROGRAMS, PYTHON, TRAIN_GPT, Jobs, Preloaded, parameters, run

import fpdiff
from fpdiff.cli import main
from fpdiff.fingerprint.record.job import remote
from fpdiff.fingerprint.record.settings import Settings

GPT = ["--steps", 3, "--d-model", 32, "--layers", 1, "--heads", 2]
FAULT = ["--fault", "rank=1,step=1,module=blocks.0.mlp"]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    server = ObjectStore()
    yield server
    server.close()


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    server.heal()
    for name, value in server.variables().items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="module")
def jobs(folder: Path, server: ObjectStore) -> Iterator[Jobs]:
    """`there` is recorded to object storage as a user does; the others are forks, and local."""
    jobs, preloaded = Jobs(), Preloaded()

    def fork(name: str, *options: object, record: dict[str, object] | None) -> None:
        jobs.add(
            name,
            preloaded.run_ranks,
            *(TRAIN_GPT, *GPT, *options),
            output=folder / f"{name}.txt",
            record=record,
        )

    command: list[object] = [*FPDIFF, "record", "--out", "s3://runs/there", "--"]
    command += [*PYTHON, PROGRAMS / "forked_ranks.py", TRAIN_GPT, *GPT]
    jobs.add("there", run, command, env={**server.variables(), "TMPDIR": folder})
    fork("unrecorded", record=None)
    fork("twin", record={"path": str(folder / "twin")})
    fork("faulty", *FAULT, record={"path": str(folder / "faulty")})
    yield jobs
    jobs.close()
    preloaded.close()


def fpdiff_here(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run the command line in this process, which has loaded everything."""
    code = main.run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_record_compare_sql_show(
    jobs: Jobs, folder: Path, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    there = jobs["there"]
    assert there.returncode == 0, there.stderr
    told = "recorded to s3://runs/there; next: fpdiff compare s3://runs/there OTHER_RUN"
    assert told in there.stderr
    assert parameters(there.stdout) == parameters(jobs["unrecorded"])
    assert not list(folder.glob("fpdiff-*"))  # All of it is there, so nothing is kept here.

    assert jobs["twin"] and jobs["faulty"]
    code, text, _ = fpdiff_here(capsys, "compare", "s3://runs/there", folder / "twin", "--json")
    verdict = json.loads(text)
    assert (code, verdict["verdict"], verdict["compared"]["ranks"]) == (0, "identical", [0, 1])

    code, _, err = fpdiff_here(capsys, "upload", folder / "faulty", "s3://runs/faulty")
    assert (code, err.split(";")[0]) == (0, "fpdiff: uploaded to s3://runs/faulty")
    code, text, _ = fpdiff_here(capsys, "compare", "s3://runs/there", "s3://runs/faulty", "--json")
    verdict = json.loads(text)
    assert (code, verdict["first_step"], verdict["num_origins"]) == (1, 1, 1)
    origin = verdict["origins"][0]
    assert (origin["rank"], origin["step"], origin["module"]) == (1, 1, "blocks.0.mlp")
    assert " --out s3://runs/faulty.narrow " in verdict["next"]
    _, text, _ = fpdiff_here(capsys, "compare", "s3://runs/there", folder / "faulty", "--json")
    assert _without_places(json.loads(text)) == _without_places(verdict)

    statement = "select run, count(*), count(distinct rank) from events group by run order by run"
    arguments = ("sql", "s3://runs/faulty", "s3://runs/there", statement, "--format", "csv")
    code, text, _ = fpdiff_here(capsys, *arguments)
    _, faulty, good = csv.reader(text.splitlines())
    events = str(sum(r.num_events for r in fpdiff.open_run(folder / "twin").ranks.values()))
    assert (code, good, faulty[0], faulty[2]) == (0, ["there", events, "2"], "faulty", "2")

    code, text, _ = fpdiff_here(capsys, "show", "s3://runs/there")
    assert code == 0 and text.startswith("run s3://runs/there\n") and "exit code 0" in text
    code, text, _ = fpdiff_here(capsys, "certify", "s3://runs/there")
    assert code == 0 and text.startswith("sound: ")


def _without_places(verdict: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in verdict.items() if k not in ("a", "b", "next")}


def test_an_upload_that_is_cut_off(
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A segment is there while the command runs; then the storage refuses, and nothing is lost."""
    monkeypatch.setattr(remote, "INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    settings = Settings(out="s3://runs/cut", level="step")
    outcome = remote.run(settings, [*PYTHON, str(script)])
    assert outcome == remote.Outcome(exit_code=3, recorded=False)
    told = capfd.readouterr().err
    assert "fpdiff: s3://runs/cut is not complete: s3://runs/cut is refused: ACCESS_DENIED" in told
    remedy = re.search(r"upload it with: fpdiff upload (\S+) s3://runs/cut$", told, re.MULTILINE)
    assert remedy is not None
    kept = remedy[1]
    assert told.count("the upload will be tried again") <= 1
    store.heal()

    verdict = fpdiff.compare(kept, "s3://runs/cut")
    assert (verdict.verdict, verdict.to_dict()["compared"]["steps"]) == ("identical", [0, 99])
    assert any("B's record of rank 0 has not finished" in note for note in verdict.notes)
    assert "ended" not in fpdiff.open_run("s3://runs/cut").info
    assert main.run(["upload", kept, "s3://runs/cut"]) == 0
    verdict = fpdiff.compare(kept, "s3://runs/cut")
    assert (verdict.verdict, verdict.to_dict()["compared"]["steps"]) == ("identical", [0, 100])
    assert fpdiff.open_run("s3://runs/cut").info["exit_code"] == 3
    assert not verdict.notes


SCRIPT = """
import os, sys, time
import torch
from urllib.request import urlopen
from fpdiff.store.bucket import ObjectFolder

net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(101):
    net(torch.ones(2)).sum().backward()
    optimizer.step()
while not ObjectFolder("s3://runs/cut").has("events/rank=00000/seg-00000.parquet"):
    time.sleep(0.05)
urlopen(os.environ["AWS_ENDPOINT_URL"] + "/refuse")
sys.exit(3)
"""


def test_what_cannot_be_recorded_to(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """It is told before the command begins, and nothing is left behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store.client.put_object(Bucket="runs", Key="taken/run.json", Body=b"{}")
    store.client.put_object(Bucket="runs", Key="full/data.txt", Body=b"mine")
    touch = [*PYTHON, "-c", f"open({str(tmp_path / 'began')!r}, 'w')"]

    def fails(out: str, *parts: str) -> None:
        code, text, err = fpdiff_here(capsys, "record", "--out", out, "--", *touch)
        assert (code, text, len(err.splitlines())) == (2, "", 1)
        assert all(part in err for part in ("fpdiff: ", *parts)), err

    fails("s3://runs/taken", "s3://runs/taken exists", "--force to replace that run")
    fails("s3://runs/full", "s3://runs/full exists and is not a run: give another address")
    fails("s3://runs", "s3://runs names no folder: write s3://BUCKET/FOLDER")
    fails("s3://elsewhere/run", "there is no bucket elsewhere; create it or correct its name")
    store.puts_left = 0
    fails("s3://runs/new", "s3://runs/new is refused: ", "check AWS_ACCESS_KEY_ID")
    store.heal()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    fails("s3://runs/new", "s3://runs/new cannot be reached: ", "check the network and AWS_ENDP")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    code, _, err = fpdiff_here(capsys, "record", "--out", "s3://runs/none", "--", *touch)
    assert (code, "nothing was recorded: " in err) == (2, True)
    assert "s3://runs/none was not kept" in err
    assert store.keys("none") == [] and [p.name for p in tmp_path.iterdir()] == ["began"]
    told = pytest.raises(fpdiff.RecordError, match="record to a folder, then `fpdiff upload` it")
    with told, fpdiff.record("s3://runs/new"):
        pass
