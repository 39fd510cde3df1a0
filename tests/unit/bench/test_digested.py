"""bench/digested.py: what is counted is what a record holds, and the limit digests as much."""

import math
from collections.abc import Callable
from pathlib import Path

import digested
import pytest
import torch
from recorded import Event, hide_the_past, read
from torch import nn

import fpdiff
from fpdiff.fingerprint.digest.algorithms import ALGORITHMS
from fpdiff.fingerprint.digest.cache import DigestCache
from fpdiff.fingerprint.digest.host import look
from fpdiff.store.schema import DIGEST_ALGORITHM

STEPS = 3


def _trainer() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()

    return step


def _size_bytes(event: Event) -> int:
    dtype = getattr(torch, event.dtype, None)
    return dtype.itemsize * math.prod(event.shape) if isinstance(dtype, torch.dtype) else 0


@pytest.mark.parametrize("level", ["step", "layer", "op"])
def test_what_is_counted_is_what_a_record_holds(level: str, tmp_path: Path) -> None:
    hide_the_past()
    step = _trainer()
    at_end = [0]
    with digested.counting() as counted, fpdiff.record(tmp_path / "run", level=level):
        for _ in range(STEPS):
            step()
            at_end.append(counted.once_bytes)
    last = at_end[-1] - at_end[-2]
    of_step = [read(tmp_path / "run").pick(step=number) for number in range(STEPS)]
    before = {event.digest for event in of_step[-2]}
    new = {event.digest: _size_bytes(event) for event in of_step[-1] if event.digest not in before}
    # No byte of which the record holds a new digest goes uncounted; what is known costs nothing.
    assert 0 < sum(new.values()) <= last < sum(map(_size_bytes, of_step[-1]))


def test_recorders_that_begin_outside_are_not_counted(tmp_path: Path) -> None:
    hide_the_past()
    step = _trainer()
    with digested.counting() as counted:
        pass
    with fpdiff.record(tmp_path / "run", level="layer"):
        step()
    assert counted.once_bytes == counted.again_bytes == 0


@pytest.mark.parametrize("size_bytes", [1, 999, 1000, 1001, 2500])
def test_the_limit_digests_as_many_bytes(size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digested, "STRETCH_BYTES", 1000)
    with digested.counting() as counted:
        limit = digested.Limit(2500)
        assert limit.seconds(size_bytes) > 0
    assert counted.once_bytes + counted.again_bytes == 3 * size_bytes  # The best of three.


def test_memory_counts_again_while_it_holds_the_same() -> None:
    tensor = torch.zeros(10)
    with digested.counting() as counted:
        cache = DigestCache(ALGORITHMS[DIGEST_ALGORITHM])

        def count(tensor: torch.Tensor) -> tuple[int, int]:
            cache.digest(tensor, look(tensor))
            return counted.once_bytes, counted.again_bytes

        assert count(tensor) == (40, 0)
        assert count(tensor) == (40, 40)
        assert count(tensor.add_(1)) == (80, 40)
        assert count(tensor.clone()) == (120, 40)  # Nobody knows beforehand that it is equal.
