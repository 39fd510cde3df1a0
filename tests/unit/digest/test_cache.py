import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fpdiff.fingerprint.digest.algorithms import ALGORITHMS
from fpdiff.fingerprint.digest.cache import SMALL_BYTES, DigestCache
from fpdiff.fingerprint.digest.host import PlainView, Undigestible, digest, digest_plain, look

LARGE = SMALL_BYTES // 4 + 1000


@pytest.fixture
def taken() -> list[int]:
    """Sizes of the digests that were taken anew by the caches that `counted` makes."""
    return []


def counted(sizes: list[int]) -> DigestCache:
    def count(tensor: torch.Tensor, view: PlainView) -> bytes:
        sizes.append(tensor.numel())
        return digest_plain(tensor, view)

    return DigestCache(replace(ALGORITHMS["xxh3-128"], of_plain=count))


def cached(cache: DigestCache, tensor: torch.Tensor, *, trust: bool = True) -> bytes:
    return cache.digest(tensor, look(tensor), trust=trust)


def test_a_version_is_digested_once(taken: list[int]) -> None:
    cache, tensor = counted(taken), torch.rand(LARGE)
    assert cached(cache, tensor) == cached(cache, tensor) == digest(tensor)
    assert cached(cache, tensor.view(2, -1)) == digest(tensor)
    assert taken == [LARGE]


def test_small_tensors_are_digested_anew(taken: list[int]) -> None:
    cache, tensor = counted(taken), torch.rand(100)
    assert cached(cache, tensor) == cached(cache, tensor)
    assert taken == [100, 100]


def test_without_trust_it_is_digested_anew_and_then_known(taken: list[int]) -> None:
    cache, tensor = counted(taken), torch.rand(LARGE)
    cached(cache, tensor)
    cached(cache, tensor, trust=False)
    assert len(taken) == 2
    cached(cache, tensor)
    assert len(taken) == 2


def _write_one(tensor: torch.Tensor) -> None:
    tensor[LARGE // 3] += 1


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda t: t.add_(1),
    "one element": _write_one,
    "through a view": lambda t: t.view(2, -1)[1, 7:9].zero_(),
    "through data": lambda t: t.data.mul_(2),
    "through detach": lambda t: t.detach().mul_(2),
    "through numpy": lambda t: t.numpy().__imul__(2),
    "through a foreach op": lambda t: torch._foreach_mul_([t], 2),
    "an out argument": lambda t: torch.add(t, 1, out=t),
    "data replaced": lambda t: setattr(t, "data", torch.zeros(LARGE)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_seen(name: str) -> None:
    cache, tensor = DigestCache(), torch.rand(LARGE) + 1
    before = cached(cache, tensor)
    WRITES[name](tensor)
    assert cached(cache, tensor) == digest(tensor) != before


def test_a_write_of_few_elements_past_the_counter_needs_no_trust() -> None:
    cache, tensor = DigestCache(), torch.zeros(LARGE)
    before = cached(cache, tensor)
    tensor.numpy()[3] = 1
    assert cached(cache, tensor) == before  # The documented limit.
    assert cached(cache, tensor, trust=False) == digest(tensor) != before


def test_views_at_other_places_have_digests_of_their_own() -> None:
    cache, base = DigestCache(), torch.rand(3, LARGE)
    views = [base, base[0], base[1], base[:2], base.t(), base[:, ::2], base.expand(2, 3, LARGE)]
    for _ in range(2):
        assert [cached(cache, view) for view in views] == [digest(view) for view in views]


def test_a_conjugate_is_not_taken_for_its_tensor() -> None:
    cache, tensor = DigestCache(), torch.rand(LARGE, dtype=torch.complex64)
    assert cached(cache, tensor) != cached(cache, tensor.conj())
    assert cached(cache, tensor.conj()) == digest(tensor.conj())


def test_memory_that_is_used_again_does_not_fool_it() -> None:
    cache = DigestCache()
    addresses = set()
    for number in range(3000):
        tensor = torch.full((LARGE,), float(number))
        addresses.add(tensor.data_ptr())
        assert cached(cache, tensor) == digest(tensor)
        if number % 500 == 499:
            cache.sweep()
    assert len(addresses) < 3000


def test_memory_that_is_used_again_with_the_same_sample_does_not_fool_it() -> None:
    cache = DigestCache()
    for number in range(2000):
        tensor = torch.zeros(LARGE)
        tensor[3] = number  # Same version each time, and no byte of the sample.
        assert cached(cache, tensor) == digest(tensor)


def test_a_storage_that_is_refilled_under_its_tensor_does_not_fool_it() -> None:
    cache, tensor = DigestCache(), torch.rand(LARGE)
    cached(cache, tensor)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    with pytest.raises(Undigestible, match="freed storage"):
        cached(cache, tensor)
    storage.resize_(4 * LARGE)
    tensor.data.fill_(3)
    assert cached(cache, tensor) == digest(torch.full((LARGE,), 3.0))


def test_sweep_frees_the_entries_of_freed_storages() -> None:
    cache = DigestCache()
    kept = torch.rand(LARGE)
    cached(cache, kept)
    for _ in range(5):
        cached(cache, torch.rand(LARGE))
    cache.sweep()
    assert len(cache._storages) == 1


def test_what_was_digested_is_not_kept_alive() -> None:
    cache, tensor = DigestCache(), torch.rand(LARGE)
    cached(cache, tensor)
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None


def test_an_inference_tensor_is_digested_anew(taken: list[int]) -> None:
    cache = counted(taken)
    with torch.inference_mode():
        tensor = torch.rand(LARGE)
        before = cached(cache, tensor)
        tensor[1] += 1
        assert cached(cache, tensor) == digest(tensor) != before
    assert len(taken) == 2


def test_a_tensor_of_several_parts_is_digested_part_by_part() -> None:
    cache, tensor = DigestCache(), torch.eye(3).to_sparse()
    assert cached(cache, tensor) == digest(tensor)


def test_looking_leaves_the_version_alone() -> None:
    cache, tensor = DigestCache(), torch.rand(LARGE, requires_grad=True)
    cached(cache, tensor)
    assert tensor._version == 0 and tensor.grad_fn is None
