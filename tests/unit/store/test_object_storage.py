"""Runs on object storage: read as in a folder, and uploaded so that they always can be."""

import contextlib
import dataclasses
import pickle
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from objectstore import ObjectStore
from synthetic import Shape, write_rank, write_run, write_run_json
from synthetic_runs import Job, at, rewrite_json, twist

import fpdiff
from fpdiff.store import bucket, parquet
from fpdiff.store.compacting import compact_run
from fpdiff.store.errors import BucketError, FpdiffError, StoreError
from fpdiff.store.objects import ObjectPath
from fpdiff.store.run import Run
from fpdiff.store.summary import summarize
from fpdiff.store.upload import Upload
from fpdiff.store.views import connect, query
from fpdiff.store.writer import SegmentLimits

KILLED = Shape(close=False, limits=Shape().limits)


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


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Return an address that no other test uses."""
    return f"s3://runs/{request.node.name}"


def key_of(url: str) -> str:
    return url.removeprefix("s3://runs/")


def upload(root: Path, url: str) -> None:
    assert fpdiff.upload(root, f"{url}/") == url


def everything(run: Run) -> list[Any]:
    return [
        [rank, record.info, record.sites(), record.steps(), list(record.event_batches())]
        for rank, record in run.ranks.items()
    ]


# Reading


def test_a_run_reads_as_it_does_in_its_folder(store: ObjectStore, tmp_path: Path, url: str) -> None:
    root = write_run(tmp_path / "run", ranks=2)
    write_rank(root, 2, Shape(close=False))
    write_run(root / "attempt=1")
    upload(root, url)
    there, here = Run.open(f"{url}/"), Run.open(root)
    assert str(there.path) == url and there.info == here.info
    assert everything(there) == everything(here)
    assert there.ranks[2].open_journal
    found = dataclasses.asdict(summarize(there))
    expected = dataclasses.asdict(summarize(here))
    assert found.pop("path") == url and found.pop("attempts") == [f"{url}/attempt=1"]
    assert found == {k: v for k, v in expected.items() if k not in ("path", "attempts")}
    assert everything(Run.open(f"{url}/attempt=1")) == everything(Run.open(root / "attempt=1"))
    # What a Path makes of an address is one too.
    assert everything(fpdiff.open_run(Path(url))) == everything(here)


def test_compare_says_the_same_of_it(store: ObjectStore, tmp_path: Path, url: str) -> None:
    job: dict[str, Any] = {"ranks": [0, 1], "steps": range(4), "parquet": True}
    a = Job(**job).arm(tmp_path / "a")
    b = Job(**job, edit=at(2, 1, twist("l0.out"))).arm(tmp_path / "b")
    for root in (a, b):
        upload(root, f"{url}/{root.name}")

    def verdict(a: object, b: object) -> dict[str, Any]:
        found = fpdiff.compare(str(a), str(b)).to_dict()
        return {k: v for k, v in found.items() if k not in ("a", "b", "next")}

    expected = verdict(a, b)
    assert (expected["verdict"], expected["first_step"]) == ("diverged", 2)
    assert verdict(f"{url}/a", f"{url}/b") == expected
    assert verdict(a, f"{url}/b") == expected
    assert verdict(f"{url}/a", a)["verdict"] == "identical"
    assert fpdiff.certify(f"{url}/a").checks == fpdiff.certify(a).checks


def test_only_what_is_needed_is_fetched(store: ObjectStore, tmp_path: Path, url: str) -> None:
    a = write_run(tmp_path / "a", ranks=2)
    upload(a, url)
    with store.watched("GET") as keys:
        assert fpdiff.compare(url, a).verdict == "identical"
    objects = [key.removeprefix(f"{key_of(url)}/") for key in keys if key != "/runs"]
    assert objects and len(objects) == len(set(objects))
    assert {key.split("/")[0] for key in objects} == {"run.json", "ranks", "steps"}
    with store.watched("GET") as keys:
        assert Run.open(url).ranks[1].events(0).num_rows == 6
    fetched = {key.removeprefix(f"{key_of(url)}/") for key in keys if "/events/" in key}
    own = "events/rank=00001"  # The last segment may hold what came late.
    assert fetched == {f"{own}/seg-00000.parquet", f"{own}/seg-00002.parquet"}


def test_of_large_files_show_fetches_footers(
    store: ObjectStore, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_SMALL_BYTES", 16 << 10)
    shape = Shape(steps=2, events=2_000, limits=SegmentLimits(steps=1))
    upload(write_run(tmp_path / "run", shape=shape), url)
    run = Run.open(url)
    assert summarize(run).num_events == 4_000
    assert isinstance(run.path, ObjectPath)
    assert not (run.path.listing.cache / "events").exists()
    assert everything(run) == everything(Run.open(tmp_path / "run"))
    monkeypatch.setattr(parquet, "_SMALL_BYTES", 100)  # Less than a footer.
    assert summarize(Run.open(url)).num_events == 4_000


def test_sql_reads_it_and_nothing_else(store: ObjectStore, tmp_path: Path, url: str) -> None:
    root = write_run(tmp_path / "run", ranks=2)
    write_rank(root, 2, Shape(close=False))
    upload(root, url)
    statement = "select * exclude (run) from events order by rank, seq"
    here = list(query(connect({"run": Run.open(root)}), statement).rows())
    for verify in (True, False):
        there = connect({"run": Run.open(url)}, verify=verify)
        assert list(query(there, statement).rows()) == here
        assert list(query(there, "select path from runs").rows()) == [(url,)]
    with pytest.raises(FpdiffError):
        query(there, f"select * from read_parquet('{root}/events/*/*.parquet')")


def test_consolidated_tables_are_read_there_and_made_elsewhere(
    store: ObjectStore, tmp_path: Path, url: str
) -> None:
    root = write_run(tmp_path / "run", ranks=3)
    compact_run(root)
    upload(root, url)
    with store.watched("GET") as keys:
        run = Run.open(url)
        assert [record.steps() for record in run.ranks.values()] == [
            record.steps() for record in Run.open(root, compact=False).ranks.values()
        ]
    assert not [key for key in keys if "/steps/" in key]
    with pytest.raises(StoreError, match=r"s3://.* is on object storage: compact the folder"):
        compact_run(url)


def test_another_process_fetches_for_itself(store: ObjectStore, tmp_path: Path, url: str) -> None:
    root = write_run(tmp_path / "run")
    upload(root, url)
    run = Run.open(url)
    with store.watched("GET") as keys:
        copy = pickle.loads(pickle.dumps(run))
    assert keys == [f"{key_of(url)}/run.json"]  # What was listed is not listed again.
    assert everything(copy) == everything(run)
    record = pickle.loads(pickle.dumps(run.ranks[0]))
    assert record.steps() == run.ranks[0].steps()


def test_what_was_fetched_is_removed_with_the_run(
    store: ObjectStore, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(write_run(tmp_path / "run"), url)
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    run = Run.open(url)
    assert run.ranks[0].steps().num_rows and len(list(kept.rglob("*.parquet"))) == 3
    del run
    assert list(kept.iterdir()) == []
    run = Run.open(url)
    shutil.rmtree(kept)
    kept.write_text("no folder")
    with pytest.raises(BucketError, match=r"s3://.* cannot be kept in .*; set TMPDIR to a folder"):
        run.ranks[0].steps()


# What cannot be read


def test_what_is_damaged_there_is_named(store: ObjectStore, tmp_path: Path, url: str) -> None:
    root = write_run(tmp_path / "run")
    events = root / "events" / "rank=00000" / "seg-00000.parquet"
    events.write_bytes(events.read_bytes()[:-50])
    upload(root, url)
    with pytest.raises(StoreError, match=f"^{url}/events/rank=00000/seg-00000.parquet is damaged"):
        Run.open(url).ranks[0].events(0)
    certificate = fpdiff.certify(url)
    assert certificate.verdict == "unsound" and url in certificate.findings[0].text
    store.client.delete_object(Bucket="runs", Key=f"{key_of(url)}/ranks/rank=00000.json")
    run = Run.open(url)
    store.client.delete_object(
        Bucket="runs", Key=f"{key_of(url)}/steps/rank=00000/seg-00000.parquet"
    )
    with pytest.raises(StoreError, match=r"steps/rank=00000/seg-00000.parquet is missing: copy"):
        run.ranks[0].steps()


def test_addresses_that_lead_to_no_run(store: ObjectStore, tmp_path: Path, url: str) -> None:
    write_run(tmp_path / "run")
    upload(tmp_path / "run", f"{url}/deep/run")
    for address in (f"{url}/other", f"{url}/deep"):
        with pytest.raises(StoreError, match=f"^no run at {address}: give what `fpdiff record"):
            Run.open(address)
    for address in ("s3://", "s3://runs", "s3://runs/"):
        with pytest.raises(BucketError, match="names no folder: write s3://BUCKET/FOLDER"):
            Run.open(address)
    with pytest.raises(BucketError, match="^s3://no-such/run: there is no bucket no-such; create"):
        Run.open("s3://no-such/run")
    with pytest.raises(BucketError, match="there is no bucket no-such"):
        upload(tmp_path / "run", "s3://no-such/run")
    with pytest.raises(BucketError, match="here names no folder: write s3://BUCKET/FOLDER"):
        fpdiff.upload(tmp_path / "run", "here")
    with pytest.raises(StoreError, match="is not a run: it has no run.json"):
        upload(tmp_path, url)
    with pytest.raises(StoreError, match=f"^{url}/deep/run is on object storage: give the folder"):
        fpdiff.upload(f"{url}/deep/run", url)


def test_a_file_of_many_parts(store: ObjectStore, url: str) -> None:
    folder, content = bucket.ObjectFolder(url), bytes(range(256)) * (12 << 12)  # 12 MiB.
    folder.write("large", content)
    assert folder.read("large") == content
    store.puts_left = 1  # One of its parts.
    with pytest.raises(BucketError, match="is refused"):
        folder.write("cut", content)
    store.heal()
    assert store.keys(key_of(url)) == [f"{key_of(url)}/large"]


def test_refused(store: ObjectStore, tmp_path: Path, url: str) -> None:
    upload(write_run(tmp_path / "run", ranks=2), url)
    run = Run.open(url)
    store.puts_left = -1
    for action in (
        lambda: Run.open(url),
        lambda: run.ranks[0].steps(),
        lambda: fpdiff.certify(url),  # Not a finding: nothing is known of the run.
        lambda: upload(tmp_path / "run", f"{url}/other"),
    ):
        with pytest.raises(BucketError, match=r"is refused: .*; check AWS_ACCESS_KEY_ID"):
            action()


@pytest.mark.parametrize("answers", [True, False], ids=["closed", "silent"])
def test_out_of_reach(
    store: ObjectStore,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
) -> None:
    upload(write_run(tmp_path / "run"), url)
    monkeypatch.setattr(bucket, "ATTEMPTS", 1)
    monkeypatch.setattr(bucket, "SILENT_SECONDS", 1)
    run = Run.open(url)
    store.is_broken = True
    with pytest.raises(BucketError, match=r"cannot be reached: .*; check the network and AWS_ENDP"):
        run.ranks[0].steps()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if not answers:
            silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(BucketError, match=r"^s3://\S* cannot be reached: "):
            Run.open(url)


# Uploading


def test_an_upload_that_is_interrupted_anywhere(
    store: ObjectStore, tmp_path: Path, url: str
) -> None:
    """After any number of objects there is no run yet, or a run of whole segments."""
    root = write_run(tmp_path / "run", shape=Shape(steps=3))
    write_rank(root, 1, Shape(close=False, steps=3))
    compact_run(root)
    expected = everything(Run.open(root))
    notes = fpdiff.compare(root, root).notes
    found = Upload(root, url)
    num_objects = sum(path.is_file() for path in root.rglob("*"))
    num_events = [0]
    for number in range(1, num_objects + 1):
        store.puts_left = 1
        with _interrupted() if number < num_objects else contextlib.nullcontext():
            if number == 1:
                found.claim()
            found.everything()
        store.heal()
        assert len(store.keys(f"{key_of(url)}/")) == number
        run = everything(Run.open(url))
        for rank, info, sites, steps, events in run:
            whole = expected[rank]
            if info.get("finished"):
                assert [rank, info, sites, steps, events] == whole
            assert events == whole[4][: len(events)]
            assert steps == whole[3][: len(steps)] and sites == whole[2][: len(sites)]
        num_events.append(sum(len(events) for *_, events in run))
        if num_events[-1]:
            verdict = fpdiff.compare(root, url)
            assert verdict.verdict == "identical"
            assert (verdict.notes == notes) == (number == num_objects)
    assert num_events == sorted(num_events)
    assert num_events[-1] == sum(len(events) for *_, events in expected)


def test_an_upload_goes_on_where_it_was_interrupted(
    store: ObjectStore, tmp_path: Path, url: str
) -> None:
    root = write_run(tmp_path / "run", ranks=2)
    store.puts_left = 0
    with _interrupted():
        upload(root, url)
    store.heal()
    with pytest.raises(StoreError, match="no run at"):
        Run.open(url)
    store.puts_left = 8
    with _interrupted():
        upload(root, url)
    store.heal()
    there = set(store.keys(key_of(url)))
    with store.watched("PUT") as keys:
        upload(root, url)
    assert not {key for key in keys if key.endswith(".parquet")} & there
    assert everything(Run.open(url)) == everything(Run.open(root))


def _interrupted() -> contextlib.AbstractContextManager[Any]:
    return pytest.raises(BucketError, match="is refused")


def test_while_it_is_recorded(store: ObjectStore, tmp_path: Path, url: str) -> None:
    """Committed segments and what ranks say follow; the journal stays until the command's end."""
    root = write_run(tmp_path / "run", shape=Shape(close=False, steps=5), ended=None)
    found = Upload(root, url)
    found.claim()
    assert store.keys(f"{key_of(url)}/") == [f"{key_of(url)}/run.json"]
    found.committed()
    with store.watched("PUT") as keys:
        found.committed()
    assert keys == []
    assert not [key for key in store.keys(key_of(url)) if "/journal/" in key]
    record = Run.open(url).ranks[0]
    assert record.steps()["step"].to_pylist() == [0, 1, 2, 3]
    rewrite_json(root / "ranks" / "rank=00000.json", blind_spots={"late": 1})
    rewrite_json(root / "run.json", ended="2026-01-02T03:05:05+00:00")
    found.committed()
    assert Run.open(url).info["ended"] is None
    found.everything()
    assert everything(Run.open(url)) == everything(Run.open(root))
    assert Run.open(url).info == Run.open(root).info


def test_a_place_is_taken_once(store: ObjectStore, tmp_path: Path, url: str) -> None:
    first, second = (write_run(tmp_path / n, created=n, launch="") for n in ("first", "second"))
    write_run(first / "attempt=1")
    upload(first, url)
    store.client.put_object(Bucket="runs", Key=f"{key_of(url)}/notes.txt", Body=b"mine")
    with pytest.raises(StoreError, match=f"^{url} exists: give another --out, or --force"):
        Upload(second, url).claim()
    with pytest.raises(StoreError, match=f"^{url} holds another run: give another address"):
        Upload(second, url).resume()
    with pytest.raises(StoreError, match="cannot agree on who replaces it: remove it first"):
        Upload(second, url).claim(rank=0, force=True)
    Upload(second, url).claim(force=True)
    assert store.keys(key_of(url)) == [f"{key_of(url)}/{n}" for n in ("notes.txt", "run.json")]
    upload(second, url)
    assert everything(Run.open(url)) == everything(Run.open(second))
    Upload(second, url).withdraw()
    assert store.keys(key_of(url)) == [f"{key_of(url)}/notes.txt"]
    for take in (Upload(second, url).claim, Upload(second, url).resume):
        with pytest.raises(
            StoreError, match=f"^{url} exists and is not a run: give another address"
        ):
            take()


def test_ranks_that_start_one_by_one_share_a_place(
    store: ObjectStore, tmp_path: Path, url: str
) -> None:
    roots = []
    for rank in (0, 1):
        root = tmp_path / f"spool of rank {rank}"
        write_run_json(root, created=f"moment {rank}", launch="job 7", ended=None)
        write_rank(root, rank, Shape(info={"environment": {"pid": 10 + rank}, "finished": True}))
        Upload(root, url).claim(rank=rank)
        assert Run.open(root).info["created"] == "moment 0"
        roots.append(root)
    for root in roots:
        upload(root, url)
    run = Run.open(url)
    assert everything(run) == [*everything(Run.open(roots[0])), *everything(Run.open(roots[1]))]
    with pytest.raises(StoreError, match="cannot agree|exists"):
        Upload(roots[1], url).claim(rank=1)
    rewrite_json(roots[1] / "ranks" / "rank=00001.json", environment={"pid": 99})
    with pytest.raises(StoreError, match="holds another run"):
        Upload(roots[1], url).resume()
