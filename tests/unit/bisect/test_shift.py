"""The same batch at another step."""

from typing import Any

import pytest

from fpdiff.fingerprint.bisect.shift import describe_shift


class Batches:
    """Stands in for a tier: only its batches are asked for."""

    def __init__(self, a: str, b: str, first_b: int = 0) -> None:
        self.a = {step: name.encode() for step, name in enumerate(a) if name != " "}
        self.b = {step + first_b: name.encode() for step, name in enumerate(b) if name != " "}

    def batches(self) -> Any:
        return self.a, self.b


@pytest.mark.parametrize(
    ("a", "b", "step", "expected"),
    [
        ("abcdefgh", "abcdabcd", 4, "B repeats A's batches shifted by -4 from step 4 on"),
        ("abcdabcd", "abcdefgh", 4, "A repeats B's batches shifted by -4 from step 4 on"),
        ("abcdefgh", "abdefghi", 2, "B repeats A's batches shifted by +1 from step 2 on"),
        ("abcdefgh", "abbcdefg", 2, "B repeats A's batches shifted by -1 from step 2 on"),
        ("abcdefgh", "abxyzuvw", 2, None),
        ("ab", "a ", 1, None),
    ],
)
def test_shifts(a: str, b: str, step: int, expected: str | None) -> None:
    tier: Any = Batches(a, b)
    found = describe_shift(tier, step)
    assert found is None if expected is None else str(found).startswith(expected)


def test_the_distance_with_most_matches_is_taken() -> None:
    tier: Any = Batches("xaxbcdef", "zzzzzxbcdef")
    assert describe_shift(tier, 5) == (
        "B repeats A's batches shifted by -3 from step 5 on: step 5 of B has the batch of step 2"
        " of A (6 of 6 steps match)"
    )


def test_one_step() -> None:
    tier: Any = Batches("ab", "bx")
    found = describe_shift(tier, 0)
    assert found is not None and "(1 of 1 step match" in found


def test_batches_that_are_all_alike_take_no_time() -> None:
    tier: Any = Batches("a" * 30_000 + "c", "a" * 100 + "b" + "a" * 29_900)
    assert describe_shift(tier, 30_000) is not None
