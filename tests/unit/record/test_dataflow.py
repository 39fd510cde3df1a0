import torch

from fpdiff.fingerprint.digest.host import look
from fpdiff.fingerprint.record.events.dataflow import Producers


def put(producers: Producers, tensor: torch.Tensor, seq: int) -> None:
    producers.put(tensor, look(tensor), seq)


def find(producers: Producers, tensor: torch.Tensor) -> tuple[int | None, bool]:
    return producers.find(tensor, look(tensor))


def test_a_tensor_is_found_by_what_recorded_it() -> None:
    producers, tensor = Producers(), torch.zeros(6)
    put(producers, tensor, 3)
    assert find(producers, tensor) == (3, True)
    assert find(producers, tensor.view(2, 3)) == find(producers, tensor.detach()) == (3, True)


def test_the_last_event_of_a_storage_counts() -> None:
    producers, tensor = Producers(), torch.zeros(6)
    put(producers, tensor, 3)
    tensor.add_(1)
    put(producers, tensor, 8)
    assert find(producers, tensor) == (8, True)


def test_another_view_is_related_but_not_the_same() -> None:
    producers, tensor = Producers(), torch.zeros(2, 3)
    put(producers, tensor, 3)
    assert find(producers, tensor[1]) == find(producers, tensor.t()) == (3, False)


def test_a_written_tensor_is_related_but_not_the_same() -> None:
    producers, tensor = Producers(), torch.zeros(2, 3)
    put(producers, tensor, 3)
    tensor[0].add_(1)
    assert find(producers, tensor) == (3, False)


def test_another_tensor_is_unknown() -> None:
    producers, tensor = Producers(), torch.zeros(6)
    put(producers, tensor, 3)
    assert find(producers, tensor.clone()) == (None, False)


def test_memory_that_is_used_again_is_unknown() -> None:
    producers = Producers()
    for seq in range(1000):
        tensor = torch.zeros(64)
        assert find(producers, tensor) == (None, False)
        put(producers, tensor, seq)


def test_tensors_without_a_version_or_bytes_are_not_followed() -> None:
    producers = Producers()
    with torch.inference_mode():
        inference = torch.zeros(3)
    for tensor in (inference, torch.empty(0), torch.eye(2).to_sparse()):
        put(producers, tensor, 1)
        assert find(producers, tensor) == (None, False)


def test_clear_forgets() -> None:
    producers, tensor = Producers(), torch.zeros(6)
    put(producers, tensor, 3)
    producers.clear()
    assert find(producers, tensor) == (None, False)
