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


def run(begin: Callable[[str], Step], arm: str, path: Path | None) -> list[float]:
    hide_the_past()
    step = begin(arm)
    if path is None:
        return [float(step(number)) for number in range(3)]
    with fpdiff.record(path, level="layer"):
        return [float(step(number)) for number in range(3)]


@pytest.mark.parametrize(
    ("begin", "op"), [(given_weights, "scatter_"), (sent_rows, "alltoall_base_")]
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
