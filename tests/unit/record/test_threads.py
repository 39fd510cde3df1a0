"""Programs that train in several threads: the record is that of one, and whole."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import hide_the_past, info, mlp, read, recorded, train
from torch import nn

import fpdiff
from fpdiff.fingerprint.record.threads import Threads


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def elsewhere(body: Callable[[], object]) -> None:
    """Run a function in another thread, to its end."""
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def test_the_first_to_ask_is_followed() -> None:
    threads = Threads()
    assert threads.are_followed()
    found: list[bool] = []
    elsewhere(lambda: found.append(threads.take()))
    assert found == [True] and not threads.take() and not threads.are_followed()


@pytest.mark.parametrize("level", ["step", "layer", "op"])
def test_what_another_thread_trains_ends_no_step(run: Path, level: str) -> None:
    model, other = mlp(), mlp(1)
    with recorded(run, level=level) as events:
        optimizer = train(model, steps=1)
        elsewhere(lambda: train(other, steps=3))
        train(
            model, steps=1, optimizer=optimizer, each=lambda step: elsewhere(lambda: train(other))
        )
    assert {e.step for e in events} == {0, 1}
    assert all("~" not in e.module for e in events if e.phase != "init")
    assert info(run)["blind_spots"].keys() == {"thread not followed"}
    assert info(run)["finished"]


class MeetsBack(torch.autograd.Function):
    """Waits for the other thread in the middle of a backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, model: "Meets") -> torch.Tensor:
        ctx.model = model
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.model.meet()
        return gradient * 1, None


class Meets(nn.Module):
    """Waits for the other thread, if there is one, in the middle of a forward and of a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(), nn.Linear(2, 2)
        self.meet: Callable[[], object] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        self.meet()
        met: torch.Tensor = MeetsBack.apply(y, self)  # type: ignore[no-untyped-call]
        return self.last(met)  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", ["layer", "op"])
def test_threads_side_by_side_do_not_mix(tmp_path: Path, level: str) -> None:
    def record(path: Path, *, beside: bool) -> list[Any]:
        hide_the_past()
        torch.manual_seed(0)
        mine, other = Meets(), Meets()
        with fpdiff.record(path, level=level):
            optimizer = train(mine, steps=1)
            thread = threading.Thread(target=lambda: train(other, steps=3))
            if beside:
                mine.meet = other.meet = partial(threading.Barrier(2).wait, 60)
                thread.start()
            train(mine, steps=3, optimizer=optimizer)
            if beside:
                thread.join()
        # What the other thread trains is a module outside of the root, found when it is found.
        return [(*e.where, e.step, e.digest) for e in read(path) if e.phase != "init"]

    assert record(tmp_path / "a", beside=True) == record(tmp_path / "b", beside=False)
    said = info(tmp_path / "a")
    assert said["finished"] and said["blind_spots"]["thread not followed"] > 0
