"""bench/gpt.py."""

import pytest
import torch
from gpt import SIZES, build


@pytest.mark.parametrize("name", SIZES)
def test_a_model_has_the_parameters_that_its_name_says(name: str) -> None:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(SIZES[name], seed=0).parameters())
    assert parameters == pytest.approx(float(name.removesuffix("M")) * 1e6, rel=0.05)
