"""The short way for tensors that stay where they were must tell what the long way tells."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recorded import Event, hide_the_past, recorded
from torch import nn

from fpdiff.fingerprint.digest.cache import SMALL_BYTES, DigestCache
from fpdiff.fingerprint.digest.host import digest
from fpdiff.fingerprint.record.state.standing import Standing

LARGE = SMALL_BYTES // 4 + 100
SITE = 7


def known(tensor: torch.Tensor) -> Standing:
    standing = Standing()
    standing.learn(tensor, "init", SITE)
    return standing


def test_nothing_is_known_at_first() -> None:
    assert Standing().site(torch.ones(3), "init") is None


def test_a_tensor_that_stays_is_known() -> None:
    tensor = torch.ones(3)
    standing = known(tensor)
    tensor.add_(1)
    assert standing.site(tensor, "init") == SITE
    assert standing.site(tensor, "optimizer") is None


def test_each_phase_has_a_site() -> None:
    tensor = torch.ones(3)
    standing = known(tensor)
    standing.learn(tensor, "optimizer", 9)
    assert (standing.site(tensor, "init"), standing.site(tensor, "optimizer")) == (SITE, 9)


@pytest.mark.parametrize("size", [5, LARGE])
def test_the_digest_is_that_of_the_bytes_now(size: int) -> None:
    tensor, cache = torch.zeros(size), DigestCache()
    standing = known(tensor)
    for trust in (True, False, True):
        tensor[size // 2] += 1
        assert standing.digest(tensor, cache, trust=trust) == digest(tensor)
        tensor.numpy()[size // 3] += 1
        assert standing.digest(tensor, cache, trust=False) == digest(tensor)


def _replace_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone()


def _reshape(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(3, 2)


def _reinterpret(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(torch.int32)


def _transpose(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(3, 2).T


def _negate(tensor: torch.Tensor) -> None:
    tensor.data = torch._neg_view(tensor.data)


def _shift(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    tensor.data = torch.empty(0).set_(storage, 1, (2, 2), (2, 1))


def _free(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


MOVES: list[Callable[[torch.Tensor], None]] = [
    _replace_data, _reshape, _reinterpret, _transpose, _negate, _shift, _free,
]  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
def test_a_tensor_that_has_moved_is_not_known(move: Callable[[torch.Tensor], None]) -> None:
    tensor = torch.rand(2, 3)
    standing = known(tensor)
    move(tensor)
    assert standing.site(tensor, "init") is None
    if move is not _free:
        standing.learn(tensor, "optimizer", 9)
        assert standing.site(tensor, "init") is None  # It was of the place before.


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, 3).T,
        torch.empty(0),
        torch.rand(3, dtype=torch.complex64),
        torch.empty(3, device="meta"),
        torch.rand(3).to_sparse(),
    ],
    ids=["transposed", "empty", "complex", "meta", "sparse"],
)
def test_others_go_the_long_way(tensor: torch.Tensor) -> None:
    assert known(tensor).site(tensor, "init") is None


def test_inference_tensors_go_the_long_way() -> None:
    with torch.inference_mode():
        tensor = torch.rand(3)
    assert known(tensor).site(tensor, "init") is None


def program(*, large: bool) -> None:
    """Train with all that may happen to the tensors of a state between its events."""
    torch.manual_seed(0)
    width = 200 if large else 8
    inner, outer = nn.Linear(4, width), nn.Linear(width, 200)
    model = nn.Sequential(inner, outer)
    first = torch.optim.Adam(inner.parameters(), lr=0.1)
    second = torch.optim.SGD(outer.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        model(torch.rand(3, 4)).sum().backward()
        first.step()
        second.step()
        if step == 1:
            second.step()  # The same sites once more in the step.
        elif step == 2:
            outer.weight.data = outer.weight.data.clone()
        elif step == 3:
            inner.bias.data = torch.stack([inner.bias.data] * 2, 1)[:, 0]  # Every second one.
        elif step == 4:
            inner.weight.detach().numpy()[0] += 1  # No version counts this.
        first.zero_grad()


@pytest.mark.parametrize("large", [False, True])
def test_a_run_is_the_same_either_way(large: bool, tmp_path: Path) -> None:
    hide_the_past()
    with recorded(tmp_path / "short") as short:
        program(large=large)
    hide_the_past()
    with recorded(tmp_path / "long", stats=True) as long:
        program(large=large)
    assert [_without_statistics(event) for event in long] == short


def _without_statistics(event: Event) -> Event:
    return replace(event, l2=None, absmax=None, nonfinite=None)
