"""Numbers, ranks and steps as sentences name them."""

from fpdiff.fingerprint.bisect.wording import counted, numbers_text, ranks_text, steps_text


def test_numbers_as_text() -> None:
    assert numbers_text([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    many = list(range(0, 20, 2))
    assert numbers_text(many) == "0, 2, 4, 6, 8, 10, 12, 14 and more"
    assert numbers_text(many, most=None) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18"
    assert [ranks_text(r) for r in ([], [3], [3, 4])] == ["no rank", "rank 3", "ranks 3-4"]
    assert steps_text([1, 3]) == "steps 1, 3"
    assert [counted(n, "event") for n in (1, 1234)] == ["1 event", "1,234 events"]
