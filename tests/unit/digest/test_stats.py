import math

import pytest
import torch

from fpdiff.fingerprint.digest.stats import statistics


def test_norm_and_largest_magnitude() -> None:
    assert statistics(torch.tensor([3.0, -4.0])) == (5.0, 4.0, 0)


def test_only_finite_elements_count() -> None:
    values = torch.tensor([3.0, -4.0, math.nan, math.inf, -math.inf])
    assert statistics(values) == (5.0, 4.0, 3)
    assert statistics(torch.tensor([math.nan])) == (0.0, 0.0, 1)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float8_e5m2],
)
def test_every_real_dtype_is_widened(dtype: torch.dtype) -> None:
    assert statistics(torch.ones(4, dtype=dtype)) == (2.0, 1.0, 0)


def test_a_large_half_does_not_overflow() -> None:
    values = torch.full((4,), 60000.0, dtype=torch.float16)
    assert statistics(values) == (120000.0, 60000.0, 0)


def test_complex_elements_count_by_magnitude() -> None:
    assert statistics(torch.tensor([3 + 4j, 0j])) == (5.0, 5.0, 0)
    assert statistics(torch.tensor([complex(math.nan, 1)])) == (0.0, 0.0, 1)


def test_any_strides_and_lazy_bits() -> None:
    values = torch.tensor([[3.0, 7.0], [-4.0, 7.0]])
    assert statistics(values[:, 0]) == (5.0, 4.0, 0)
    assert statistics(torch.tensor([3 + 4j]).conj().imag) == (4.0, 4.0, 0)


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(0), torch.empty(3, device="meta"), torch.eye(2).to_sparse()],
    ids=["empty", "meta", "sparse"],
)
def test_there_are_none_without_plain_elements(tensor: torch.Tensor) -> None:
    assert statistics(tensor) is None


def test_looking_changes_nothing() -> None:
    values = torch.rand(5, requires_grad=True)
    state, version = torch.get_rng_state(), values._version
    result = values * 2
    node = result.grad_fn
    statistics(result)
    assert result.grad_fn is node and values._version == version
    assert torch.equal(torch.get_rng_state(), state)
