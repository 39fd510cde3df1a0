import gc
import weakref

import torch

from fpdiff.fingerprint.digest.storages import StorageTable


def test_a_value_is_found_by_any_tensor_of_the_storage() -> None:
    table: StorageTable[str] = StorageTable()
    tensor = torch.zeros(6)
    table.put(tensor.untyped_storage(), "first")
    assert table.get(tensor[2:].view(2, 2).untyped_storage()) == "first"
    assert table.get(tensor.clone().untyped_storage()) is None


def test_a_later_value_replaces_an_earlier_one() -> None:
    table: StorageTable[int] = StorageTable()
    storage = torch.zeros(1).untyped_storage()
    table.put(storage, 1)
    table.put(storage, 2)
    assert (len(table), table.get(storage)) == (1, 2)


def test_a_new_storage_never_finds_the_value_of_a_freed_one() -> None:
    table: StorageTable[int] = StorageTable()
    addresses = set()
    for number in range(2000):
        storage = torch.full((256,), float(number)).untyped_storage()
        addresses.add(storage.data_ptr())
        assert table.get(storage) is None
        table.put(storage, number)
        if number % 100 == 99:
            table.sweep()
    assert len(addresses) < 2000  # The data's memory was used again.


def test_sweep_drops_what_was_freed_and_nothing_else() -> None:
    table: StorageTable[int] = StorageTable()
    alive = [torch.zeros(4) for _ in range(3)]
    for number, tensor in enumerate([*alive, torch.zeros(4), torch.zeros(4)]):
        table.put(tensor.untyped_storage(), number)
    del tensor
    assert len(table) == 5
    table.sweep()
    assert len(table) == 3
    assert [table.get(tensor.untyped_storage()) for tensor in alive] == [0, 1, 2]
    table.sweep()
    assert len(table) == 3


def test_clear_drops_everything_and_the_table_can_go_on() -> None:
    table: StorageTable[int] = StorageTable()
    tensor = torch.zeros(4)
    table.put(tensor.untyped_storage(), 1)
    table.clear()
    assert len(table) == 0 and table.get(tensor.untyped_storage()) is None
    table.put(tensor.untyped_storage(), 2)
    assert table.get(tensor.untyped_storage()) == 2


def test_an_entry_keeps_no_tensor_alive() -> None:
    table: StorageTable[int] = StorageTable()
    tensor = torch.zeros(4)
    table.put(tensor.untyped_storage(), 1)
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None


def test_the_storage_outlives_its_tensor_as_without_a_table() -> None:
    table: StorageTable[int] = StorageTable()
    base = torch.arange(4.0)
    table.put(base.untyped_storage(), 1)
    view = base[1:]
    del base
    table.sweep()
    assert table.get(view.untyped_storage()) == 1 and view.tolist() == [1, 2, 3]
