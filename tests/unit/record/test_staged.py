"""Steps whose digests arrive late: what is on disk is what it would have been at once."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from late_streams import LateCopy, LateStaging
from recorded import Events, hide_the_past, info, mlp, read, recorded, train

import fpdiff
from fpdiff.fingerprint.digest.host import PlainView
from fpdiff.fingerprint.record import recorder
from fpdiff.fingerprint.record.events import stepevents
from fpdiff.store.schema import GROUPS
from fpdiff.store.writer import RankWriter, SegmentLimits

Arrive = Callable[[list[LateCopy]], None]


@pytest.fixture(autouse=True)
def _on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the recorder take the host's tensors for those of a device."""
    elsewhere = property(lambda view: False, lambda view, value: None)
    monkeypatch.setattr(PlainView, "is_on_host", elsewhere)


def never(copies: list[LateCopy]) -> None:
    pass


def at_once(copies: list[LateCopy]) -> None:
    for copy in copies:
        copy.has_arrived = True


def out_of_order(copies: list[LateCopy]) -> None:
    for copy in random.Random(len(copies)).sample(copies[:-1], len(copies) // 2):
        copy.has_arrived = True


def one_step_late(copies: list[LateCopy]) -> None:
    for copy in copies[:-2]:
        copy.has_arrived = True


ARRIVALS: list[Arrive] = [never, at_once, out_of_order, one_step_late]


def run(path: Path, *, steps: int = 5, **options: object) -> Events:
    hide_the_past()
    with recorded(path, digest="mix128", **options) as events:
        train(mlp(), steps=steps, microbatches=2)
    return events


def steps_of(path: Path) -> list[dict[str, object]]:
    columns = ["step", "first_seq", "events", "ended", "content", "structure", "chain"]
    columns += [f"content_{group}" for group in GROUPS]
    rows: list[dict[str, object]] = (
        fpdiff.open_run(path).ranks[0].steps().select(columns).to_pylist()
    )
    return rows


@pytest.fixture(scope="module")
def at_once_recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {level: tmp_path_factory.mktemp("now") / level for level in ("layer", "op")}


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("arrive", ARRIVALS)
def test_what_is_on_disk_does_not_hang_on_when_digests_arrive(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once_recorded: dict[str, Path],
    level: str,
    arrive: Arrive,
) -> None:
    now = at_once_recorded[level]
    if not now.exists():
        run(now, level=level)  # CPU tensors are not taken: each digest is waited for.
    staging = LateStaging(arrive)
    monkeypatch.setattr(stepevents, "Staging", lambda: staging)
    run(tmp_path / "late", level=level)
    assert len(staging.copies) >= 5
    assert staging.together_put  # What a step starts from, its gradients, what the optimizer made.
    assert set(staging.together_put) == {4}
    assert ("waited" in staging.log) == (arrive is not at_once)
    assert "stopped" not in info(tmp_path / "late")
    assert read(tmp_path / "late") == read(now)
    assert steps_of(tmp_path / "late") == steps_of(now)
    assert fpdiff.certify(tmp_path / "late").verdict == "sound"


def test_a_step_is_held_no_longer_than_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a run that is killed has lost no more than the step in progress and the one before."""
    staging = LateStaging(never)
    monkeypatch.setattr(stepevents, "Staging", lambda: staging)
    on_disk = []

    def each(step: int) -> None:
        if (tmp_path / "run" / "journal").exists():
            on_disk.append((step, len(fpdiff.open_run(tmp_path / "run").ranks[0].steps())))

    hide_the_past()
    with recorded(tmp_path / "run", digest="mix128"):
        train(mlp(), steps=6, each=each)
    assert len(on_disk) == 5
    assert all(count >= step - 2 for step, count in on_disk), on_disk
    assert len(steps_of(tmp_path / "run")) == 6


def test_windows_and_segments_end_at_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = partial(RankWriter, limits=SegmentLimits(steps=2))
    monkeypatch.setattr(recorder, "RankWriter", limits)
    staging = LateStaging(one_step_late)
    monkeypatch.setattr(stepevents, "Staging", lambda: staging)
    hide_the_past()
    with recorded(tmp_path / "run", digest="mix128", steps="0:3,5:9"):
        train(mlp(), steps=9)
    assert len(list((tmp_path / "run" / "events" / "rank=00000").glob("*.parquet"))) >= 3
    assert [row["step"] for row in steps_of(tmp_path / "run")] == [0, 1, 2, 5, 6, 7, 8]
    assert fpdiff.certify(tmp_path / "run").verdict == "sound"


def with_numbers(path: Path, **options: object) -> Events:
    """Record a program whose loss, norms and metrics are numbers that a device holds."""
    hide_the_past()
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    with recorded(path, digest="mix128", **options) as events:
        for _ in range(4):
            loss = model(torch.ones(3, 4)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            fpdiff.log("loss", loss)
            fpdiff.log("speed", 3)
            optimizer.step()
            optimizer.zero_grad()
    return events


def test_no_device_is_asked_for_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = with_numbers(tmp_path / "now")
    staging = LateStaging(never)
    monkeypatch.setattr(stepevents, "Staging", lambda: staging)
    assert with_numbers(tmp_path / "late") == now
    assert steps_of(tmp_path / "late") == steps_of(tmp_path / "now")
    losses = now.pick(kind="loss").column("value")
    assert len(losses) == 4 and now.pick(slot="loss").column("value") == losses
    # In each step the rate, the loss, the norm and the logged loss.
    assert len(staging.numbers) == 16 and set(losses) <= set(staging.numbers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_step_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # Here the tensors are on a device.
    hide_the_past()
    model = mlp().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.ones(3, 4, device="cuda")
    with recorded(tmp_path / "run", digest="mix128") as events:
        for step in range(6):
            if step == 2:  # Kernels have been compiled and buffers made.
                torch.cuda.set_sync_debug_mode("error")
            loss = model(batch).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            fpdiff.log("loss", loss)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.set_sync_debug_mode("default")
    assert "stopped" not in info(tmp_path / "run")
    assert None not in events.pick(kind="loss").column("value") and len(events) > 100
