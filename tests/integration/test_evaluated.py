"""One run evaluates the model between its steps: no difference by itself, whatever the model holds.

What a step's record has depends on what the step met before, and an evaluation meets it first.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from recorded import hide_the_past
from torch import nn

import fpdiff
from fpdiff.fingerprint.bisect.verdict import Verdict

LENGTH = 6


class Net(nn.Module):
    """Adds to its words what a module makes of places that the model itself holds."""

    places: torch.Tensor

    def __init__(self, held: str) -> None:
        super().__init__()
        self.word, self.drop, self.out = nn.Embedding(20, 8), nn.Dropout(0.1), nn.Linear(8, 2)
        self.place = nn.Embedding(LENGTH, 8)
        self.register_buffer("places", torch.arange(LENGTH), persistent=False)
        self.held, self.plain, self.kept = held, torch.arange(LENGTH), torch.empty(0)

    def _places(self, tokens: torch.Tensor) -> torch.Tensor:
        size = tokens.shape[1]
        if self.held == "a slice of a buffer":
            return self.place(self.places[:size])  # type: ignore[no-any-return]
        if self.held == "a buffer and a slice of it":
            return self.place(self.places)[:size] + self.place(self.places[:size])  # type: ignore[no-any-return]
        if self.held == "a tensor that is no buffer":
            return self.place(self.plain[:size] * 1)  # type: ignore[no-any-return]
        if not self.kept.numel():
            self.kept = torch.arange(LENGTH)
        return self.place(self.kept)[:size]  # type: ignore[no-any-return]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.word(tokens) + self._places(tokens)))  # type: ignore[no-any-return]


HELD = (
    "a slice of a buffer",
    "a buffer and a slice of it",
    "a tensor that is no buffer",
    "a tensor that its first call makes",
)


def evaluate(
    model: nn.Module, tokens: torch.Tensor, how: Callable[[], AbstractContextManager[None]]
) -> None:
    model.eval()
    with how():
        model(tokens)
    model.train()


def compared(
    path: Path, level: str, held: str, between: Callable[[nn.Module, torch.Tensor], None]
) -> Verdict:
    """Compare a run with one that does something before its third step."""
    tokens = torch.randint(20, (4, 4, LENGTH), generator=torch.Generator().manual_seed(1))
    for arm in "AB":
        hide_the_past()
        torch.manual_seed(0)
        model = Net(held)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fpdiff.record(path / arm, level=level):
            for step in range(4):
                if (arm, step) == ("B", 2):
                    between(model, tokens[2])
                loss = (model(tokens[step]) - tokens[step, 0, 0]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return fpdiff.compare(path / "A", path / "B")


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(
    ("size", "how"), [(LENGTH, torch.no_grad), (LENGTH - 2, torch.inference_mode)]
)
def test_an_evaluation_is_no_difference(
    tmp_path: Path,
    level: str,
    held: str,
    size: int,
    how: Callable[[], AbstractContextManager[None]],
) -> None:
    def between(model: nn.Module, tokens: torch.Tensor) -> None:
        evaluate(model, tokens[:, :size], how)

    verdict = compared(tmp_path, level, held, between)
    assert verdict.verdict == "identical", verdict.summary
    assert "only B evaluated the model in step 2; nothing else differs there" in verdict.notes


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("held", HELD)
def test_what_changed_with_it_is_named(tmp_path: Path, level: str, held: str) -> None:
    def between(model: nn.Module, tokens: torch.Tensor) -> None:
        evaluate(model, tokens, torch.no_grad)
        torch.rand(1)

    [origin] = compared(tmp_path, level, held, between).origins
    expected = ("drop", None, "rng") if level == "layer" else ("", "aten.rand.default", "structure")
    assert (origin.step, origin.module, origin.op, origin.class_) == (2, *expected)
