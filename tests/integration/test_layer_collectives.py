"""What the rung layer knows of what collectives left: in parameters, in sizes, in outputs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from recorded import hide_the_past
from torch import distributed, nn
from verdicts import only

import fpdiff

Step = Callable[[int], torch.Tensor]
"""Takes the number of a step, and returns its loss."""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    """Be the only rank of a job: what it gives to a collective comes back."""
    rendezvous = f"file://{tmp_path}/rendezvous"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Exchanging(nn.Module):
    """Sends rows to the ranks that are to have them, and gets as many as these say."""

    def __init__(self, chosen: float) -> None:
        super().__init__()
        self.before, self.after, self.chosen = nn.Linear(8, 8), nn.Linear(8, 4), chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        sent = x[(x[:, 0] > x[:, 0].quantile(self.chosen)).detach()].detach()
        counts, got = torch.tensor([len(sent)]), torch.zeros(1, dtype=torch.int64)
        distributed.all_to_all_single(got, counts)
        received = torch.empty(int(got), 8)
        distributed.all_to_all_single(received, sent, got.tolist(), counts.tolist())
        result: torch.Tensor = self.after(x + received.sum(0))
        return result


def given_weights(arm: str) -> Step:
    """Return a step in whose middle weights come by a collective, which no version counts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        model(torch.ones(6, 8)).square().mean().backward()
        for parameter in model.parameters():
            better = parameter.detach() * (3 if (arm, number) == ("B", 1) else 2)
            distributed.scatter(parameter.data, [better], 0)
        loss: torch.Tensor = model(torch.ones(6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def sent_rows(arm: str) -> Step:
    """Return a step that exchanges rows, as many as data say."""
    torch.manual_seed(0)
    model = Exchanging(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        model.chosen = 0.3 if (arm, number) == ("B", 1) else 0.5
        made: torch.Tensor = model(
            torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        )
        loss = made.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Held(nn.Module):
    """Computes with a tensor that its caller holds."""

    held: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.held


class Holding(nn.Module):
    """Lets a collective make what a module inside computes with, as a wrapper that shards does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.factor = nn.Linear(8, 4), Held(), 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.empty(4)
        distributed.scatter(held, [torch.full((4,), self.factor)], 0)
        object.__setattr__(self.inner, "held", held.clone())
        result: torch.Tensor = self.inner(self.first(x))
        return result


def held_by_a_caller(arm: str) -> Step:
    """Return a step in which a module computes with what its caller got."""
    torch.manual_seed(0)
    model = Holding()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        model.factor = 3.0 if (arm, number) == ("B", 1) else 2.0
        loss: torch.Tensor = model(torch.ones(6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Gathering(nn.Module):
    """Gives the parameters of a module inside to a collective, and gets those to compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(32)
        distributed.all_gather([whole], self.inner.weight.detach().flatten().clone())
        result: torch.Tensor = self.inner(x) + whole.sum()
        return result


def gathered(arm: str) -> Step:
    """Return a step of a model whose parameters are gathered before use."""
    torch.manual_seed(0)
    model = Gathering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        if (arm, number) == ("B", 1):
            model.inner.weight.data.mul_(1.5)
        loss: torch.Tensor = model(torch.ones(6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run(begin: Callable[[str], Step], arm: str, path: Path | None) -> list[float]:
    hide_the_past()
    step = begin(arm)
    if path is None:
        return [float(step(number)) for number in range(3)]
    with fpdiff.record(path, level="layer"):
        return [float(step(number)) for number in range(3)]


@pytest.mark.parametrize(
    ("begin", "op"),
    [(given_weights, "scatter_"), (sent_rows, "alltoall_base_"), (held_by_a_caller, "scatter_")],
)
def test_what_was_given_is_the_origin_and_what_is_made_with_what_came_back_is_not(
    tmp_path: Path, begin: Callable[[str], Step], op: str
) -> None:
    losses = [run(begin, arm, tmp_path / arm) for arm in "AB"]
    run(begin, "A", tmp_path / "twin")
    assert losses[0] == run(begin, "A", None) != losses[1]
    assert fpdiff.compare(tmp_path / "A", tmp_path / "twin").verdict == "identical"
    verdict = fpdiff.compare(tmp_path / "A", tmp_path / "B")
    first = only(verdict)
    assert (first.step, first.kind, first.class_) == (1, "sent", "computation")
    assert first.op is not None and op in first.op


def test_what_is_gathered_of_modules_inside_is_made_from_their_parameters(tmp_path: Path) -> None:
    for arm in "AB":
        run(gathered, arm, tmp_path / arm)
    first = only(fpdiff.compare(tmp_path / "A", tmp_path / "B"))
    assert (first.step, first.module, first.class_) == (1, "inner", "state")
