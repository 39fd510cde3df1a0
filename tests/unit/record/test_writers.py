"""Which events wrote the bytes that a tensor covers."""

import torch

from fpdiff.fingerprint.digest.host import PlainView, digest, look
from fpdiff.fingerprint.record.ops.writers import Flight, Writers


def view(tensor: torch.Tensor) -> PlainView:
    found = look(tensor)
    assert found is not None
    return found


def test_a_write_is_what_the_same_bytes_read() -> None:
    writers, x = Writers(), torch.zeros(4, 4)
    assert writers.sources(view(x)) == ([], False, False)
    writers.put(view(x), 3)
    assert writers.sources(view(x[1:3])) == ([3], True, False)
    assert writers.sources(view(torch.zeros(4, 4))).known is False


def test_later_writes_hide_what_they_cover_and_nothing_else() -> None:
    writers, x = Writers(), torch.zeros(4, 4)
    writers.put(view(x), 1)
    writers.put(view(x[0]), 2)
    assert writers.sources(view(x[0])).seqs == [1, 2]
    assert writers.sources(view(x[1])).seqs == [1]
    writers.put(view(x), 5)
    assert writers.sources(view(x[0])).seqs == [5]


def test_a_column_leaves_the_rest_of_its_rows() -> None:
    writers, x = Writers(), torch.zeros(4, 4)
    writers.put(view(x), 1)
    writers.put(view(x[:, 0]), 2)
    assert writers.sources(view(x)).seqs == [1, 2]
    writers.put(view(x.t()), 3)  # All of it, in another order.
    assert writers.sources(view(x)).seqs == [3]


def test_holes_close_byte_by_byte() -> None:
    writers, x = Writers(), torch.zeros(4, 4)
    writers.allocate(view(x))
    assert writers.sources(view(x)).has_hole
    writers.put(view(x[0]), 1)
    assert not writers.sources(view(x[0])).has_hole
    assert writers.sources(view(x)) == ([1], False, True)
    writers.put(view(x[1:]), 2)
    assert writers.sources(view(x)) == ([1, 2], True, False)


def test_a_new_step_forgets_writes_and_keeps_holes() -> None:
    writers, x, y = Writers(), torch.zeros(4), torch.zeros(4)
    writers.allocate(view(x))
    writers.put(view(x[:2]), 1)
    writers.put(view(y), 9)
    writers.forget(5)
    assert writers.sources(view(x[:2])) == ([], False, False)
    assert writers.sources(view(x)).has_hole
    assert writers.sources(view(y)).seqs == [9]
    writers.renumber(5, lambda seq: seq + 100)
    assert writers.sources(view(y)).seqs == [109]
    assert writers.sources(view(y), first=200) == ([], False, False)


def test_who_chose_a_view_is_read_with_it() -> None:
    writers, x = Writers(), torch.zeros(4, 4)
    writers.put(view(x), 1)
    part = x[1:2]
    writers.choose(view(part), 2)
    assert writers.sources(view(part)).seqs == [1, 2]
    assert writers.sources(view(x[2:3])).seqs == [1]
    assert writers.chosen(view(part)) == 2
    assert writers.has_views(x.untyped_storage())


def test_what_is_in_flight_lands_when_it_is_read() -> None:
    writers, x = Writers(), torch.arange(6.0)
    landed = []

    def land(tensor: torch.Tensor, reads: list[int]) -> None:
        landed.append((tensor.tolist(), reads))
        writers.put(view(tensor), 8)

    writers.put(view(x), 1)
    writers.launch(view(x[2:]), Flight(8, 24, [4], land, x.dtype, 2, torch.Size([4]), (1,)))
    assert writers.sources(view(x[:2])).seqs == [1] and not landed
    assert not writers.is_copied_in(view(x)) and writers.num_in_flight() == 1
    assert writers.sources(view(x[3:4])).seqs == [1, 8]
    assert landed == [([2.0, 3.0, 4.0, 5.0], [4])]
    assert writers.num_in_flight() == 0
    writers.launch(view(x), Flight(0, 24, [4], land, x.dtype, 0, x.shape, (1,), by_copy=True))
    assert writers.is_copied_in(view(x[2:]))


def test_bytes_that_changed_since_are_found() -> None:
    writers, x = Writers(), torch.zeros(8)
    writers.put(view(x), 1, digest(x))

    def now(start: int, end: int) -> bytes:
        return digest(x[start // 4 : end // 4])

    assert not writers.rewritten(view(x[2:]), now)
    assert writers.digest_of(view(x)) == digest(x)
    x.numpy()[3] = 1
    assert writers.rewritten(view(x[:2]), now)  # Its write is of the whole.
    assert writers.contradicts(view(x), digest(x))
    writers.put(view(x), 2, digest(x))
    assert not writers.rewritten(view(x), now)


def test_memory_that_was_given_back_is_not_looked_at() -> None:
    """As sharded parameters do, whose storages shrink and grow."""
    writers, x = Writers(), torch.zeros(8)
    writers.put(view(x), 1, digest(x))
    part = view(x[:2])
    x.untyped_storage().resize_(8)

    def now(start: int, end: int) -> bytes:
        raise AssertionError(f"bytes {start} to {end} of 8 were read")

    assert not writers.rewritten(part, now)
