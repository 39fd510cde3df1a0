"""bench/digest_quality.py on few trials: nothing is missed, and a digest that misses is told."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fpdiff.fingerprint.digest.mix128 import vectorised

BENCH = Path(__file__).resolve().parents[3] / "bench" / "digest_quality.py"


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digest_quality", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_change_is_missed_in_ten_thousand(quality: ModuleType, dtype: torch.dtype) -> None:
    counts = quality.count_misses(dtype, 10_000, torch.Generator().manual_seed(5))
    assert len(counts) == len(quality.CHANGES)
    for name, (trials, ours, theirs) in counts.items():
        assert trials >= 10_000 and ours == 0, name
        if "signs of 2" in name or name in ("two swapped", "all permuted", "all shifted"):
            assert theirs == trials  # So the changes are such that a digest can miss.


def test_zeros_of_every_length_differ(quality: ModuleType) -> None:
    assert quality.count_equal_zeros(100_000) == (0, 99_999)


def test_the_same_change_adds_other_amounts_at_other_places(quality: ModuleType) -> None:
    excess, where = quality.repeated_amounts(1 << 16)
    assert excess < 8, where


def test_every_input_bit_moves_every_output_bit(quality: ModuleType) -> None:
    share, furthest = quality.avalanche(quality.digests, 4096)
    assert abs(share - 0.5) < 0.001 and furthest < 0.05  # Coins: 0.036.
    assert quality.balance(quality.digests, 4096) < 0.04
    share, furthest = quality.avalanche(quality.theirs, 256)
    assert share < 0.05 and furthest == 0.5


def test_a_weaker_mixing_is_found_out(quality: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as weaker:
        weaker.setattr(vectorised, "ROTATIONS", ())  # Signs then have little to be mixed with.
        assert quality.repeated_amounts(1 << 16)[0] > 1000
    with monkeypatch.context() as weaker:
        weaker.setattr(vectorised, "MULTIPLIERS", ((1, 1), (1, 1)))
        assert quality.avalanche(quality.digests, 256)[1] > 0.2
    with monkeypatch.context() as weaker:
        weaker.setattr(vectorised, "GAMMAS", (0, 0))  # Then lanes may change places.
        generator = torch.Generator().manual_seed(5)
        assert quality.count_misses(torch.bfloat16, 1000, generator)["all shifted"][1] > 0
