import gc
import weakref

from fpdiff.fingerprint.record.identity import IdentityTable


class Equal:
    """Equal to every other one, and not hashable."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = None  # type: ignore[assignment]


def test_objects_are_told_apart_by_identity() -> None:
    table: IdentityTable[str] = IdentityTable()
    first, second = Equal(), Equal()
    table.put(first, "first")
    assert (table.get(first), table.get(second), first in table) == ("first", None, True)
    table.put(second, "second")
    table.put(first, "again")
    assert (table.get(first), table.get(second), len(table)) == ("again", "second", 2)


def test_an_object_that_dies_takes_its_value_with_it() -> None:
    table: IdentityTable[str] = IdentityTable()
    one = Equal()
    ref = weakref.ref(one)
    table.put(one, "value")
    del one
    assert ref() is None and len(table) == 0


def test_an_id_that_is_used_again_has_no_value() -> None:
    table: IdentityTable[str] = IdentityTable()
    ids = set()
    for _ in range(100):
        one = Equal()
        assert table.get(one) is None
        table.put(one, "value")
        table.put(one, "value")  # The first reference's callback must not drop the second.
        assert one in table
        ids.add(id(one))
        del one
    assert len(ids) < 100 and len(table) == 0


def test_an_object_in_a_cycle_that_is_being_collected_has_no_value() -> None:
    table: IdentityTable[str] = IdentityTable()
    seen = []

    class Cycle(Equal):
        def __del__(self) -> None:
            seen.append(table.get(self))

    one = Cycle()
    one.itself = one  # type: ignore[attr-defined]
    table.put(one, "value")
    del one
    gc.collect()
    assert seen == [None] and len(table) == 0
