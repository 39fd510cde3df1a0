import json
from pathlib import Path

import pytest

from fpdiff.fingerprint.record.job import runfolder
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.store.errors import RecordError, StoreError
from fpdiff.store.run import Run


@pytest.fixture(autouse=True)
def _one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PMIX_NAMESPACE", "PMI_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "host")
    monkeypatch.setenv("MASTER_PORT", "1")


def create(root: Path, *, rank: int | None = None, force: bool = False) -> None:
    runfolder.create(Settings(out=str(root)), ["python", "x.py"], rank=rank, force=force)


def test_a_run_says_how_it_was_made(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "run"
    create(root)
    info = Run.open(root).info
    assert info["command"] == ["python", "x.py"] and info["level"] == "layer"
    assert info["settings"]["out"] == str(root) and "ended" not in info


def test_its_end_is_noted(tmp_path: Path) -> None:
    create(tmp_path / "r")
    runfolder.finish(tmp_path / "r", 3)
    info = Run.open(tmp_path / "r").info
    assert info["exit_code"] == 3 and info["ended"] >= info["created"]


def test_a_run_is_not_overwritten_unless_forced(tmp_path: Path) -> None:
    root = tmp_path / "r"
    create(root)
    (root / "notes.txt").write_text("mine")
    (root / "events").mkdir()
    with pytest.raises(RecordError, match="exists: give another --out, or --force"):
        create(root)
    create(root, force=True)
    assert not (root / "events").exists() and (root / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_no_run_is_left_alone_even_if_forced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for force in (False, True):
        with pytest.raises(RecordError, match="exists and is not a run"):
            create(tmp_path, force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("x")
    with pytest.raises(RecordError, match="exists and is not a run"):
        create(tmp_path / "r")
    with pytest.raises(RecordError, match="cannot write .*Not a directory; give a writable --out"):
        create(tmp_path / "r" / "below")


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    create(tmp_path)
    assert (tmp_path / "run.json").exists()


def test_ranks_of_one_launch_share_a_run(tmp_path: Path) -> None:
    root = tmp_path / "r"
    create(root, rank=0)
    before = (root / "run.json").read_text()
    create(root, rank=1)
    assert (root / "run.json").read_text() == before


def test_a_rank_joins_once(tmp_path: Path) -> None:
    root = tmp_path / "r"
    create(root, rank=0)
    (root / "journal" / "rank=00000").mkdir(parents=True)
    create(root, rank=1)
    with pytest.raises(RecordError, match="exists"):
        create(root, rank=0)


def test_a_rank_of_another_launch_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "r"
    create(root, rank=0)
    monkeypatch.setenv("MASTER_PORT", "2")
    with pytest.raises(RecordError, match="exists: give another --out"):
        create(root, rank=1)
    with pytest.raises(RecordError, match="cannot agree on who replaces it: remove it first"):
        create(root, rank=1, force=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"launch": ""}'])
def test_a_rank_does_not_join_what_it_cannot_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match="exists"):
        create(tmp_path, rank=1)


def test_a_run_without_records_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "r"
    create(root)
    assert runfolder.remove_if_empty(root) and not root.exists()
    create(root)
    (root / "journal").mkdir()
    assert not runfolder.remove_if_empty(root) and root.exists()


def test_removing_keeps_what_is_not_ours(tmp_path: Path) -> None:
    root = tmp_path / "r"
    create(root)
    (root / "notes.txt").write_text("mine")
    runfolder.remove(root)
    assert [path.name for path in root.iterdir()] == ["notes.txt"]


def test_the_commit_is_noted_where_there_is_one(tmp_path: Path) -> None:
    create(tmp_path / "r")
    commit = json.loads((tmp_path / "r" / "run.json").read_text())["git_commit"]
    assert commit is None or isinstance(commit, str)


def test_a_rank_on_another_machine_records_nowhere(tmp_path: Path) -> None:
    """Its launcher's folder is not there, and what it wrote would never be found."""
    with pytest.raises(StoreError, match="run is not on .*: start `fpdiff record` on every mach"):
        runfolder.join_attempt(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    create(tmp_path / "run")
    assert runfolder.join_attempt(tmp_path / "run") == tmp_path / "run"
