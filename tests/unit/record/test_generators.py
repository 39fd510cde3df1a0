import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fpdiff.fingerprint.record.generators import states, torch_state

DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "numpy": lambda: np.random.rand(),
    "torch.cpu": lambda: torch.rand(1),
}


def test_every_default_generator_has_a_state() -> None:
    assert list(dict(states())) == ["python", "numpy", "torch.cpu"]


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_changes_that_generators_state_only(name: str) -> None:
    before = dict(states())
    DRAWS[name]()
    after = dict(states())
    assert {key for key in before if before[key] != after[key]} == {name}


@pytest.mark.parametrize("name", DRAWS)
def test_looking_moves_nothing(name: str) -> None:
    before = dict(states())
    torch_state()
    assert dict(states()) == before


def test_a_seed_gives_the_same_state() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    before, own = dict(states()), torch_state()
    for draw in DRAWS.values():
        draw()
    assert torch_state() != own
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    assert dict(states()) == before and torch_state() == own


def test_a_pending_gaussian_is_part_of_the_state() -> None:
    random.seed(3)
    random.gauss(0, 1)
    python = dict(states())["python"]
    words = random.getstate()[1]
    random.gauss(0, 1)  # Takes the second of the pair: moves no word.
    assert random.getstate()[1] == words and dict(states())["python"] != python


def test_a_normal_draw_of_torch_that_leaves_one_in_hand_shows() -> None:
    torch.manual_seed(3)
    before = torch_state()
    torch.normal(0.0, 1.0, (1,))
    assert torch_state() != before
