import pytest

from fpdiff.fingerprint.record.settings import Settings, parse_ranks, parse_steps
from fpdiff.store.errors import RecordError


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", ()),
        ("5", ((5, 6),)),
        ("10:20", ((10, 20),)),
        ("10:20,400", ((10, 20), (400, 401))),
        (" 1 , 3:4 ", ((1, 2), (3, 4))),
        ("0:1", ((0, 1),)),
    ],
)
def test_steps_are_read_as_slices_count(text: str, ranges: object) -> None:
    assert parse_steps(text) == ranges


@pytest.mark.parametrize(
    "text", ["a", "1:", ":3", "3:3", "5:2", "-1", "1-3", "1,,2", ",", "1:2:3", "1.5", "0x1", " "]
)
def test_other_steps_are_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(RecordError, match="--steps .* is not understood: .* 10:20,400"):
        parse_steps(text)


@pytest.mark.parametrize(
    ("text", "ranges"),
    [("", ()), ("3", ((3, 4),)), ("0,3-5", ((0, 1), (3, 6))), ("2-2", ((2, 3),))],
)
def test_ranks_include_their_last(text: str, ranges: object) -> None:
    assert parse_ranks(text) == ranges


@pytest.mark.parametrize("text", ["a", "3-", "5-2", "0:2", "-1"])
def test_other_ranks_are_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(RecordError, match="--ranks .* is not understood: .* 0,3-5"):
        parse_ranks(text)


def test_settings_travel_as_json() -> None:
    settings = Settings(
        out="/runs/ä b",
        level="step",
        steps=parse_steps("10:20,400"),
        modules=r"layers\.\d+$",
        ranks=parse_ranks("0,3-5"),
        stats=True,
        rehash=True,
        first_step=7,
    )
    again = Settings.from_json(settings.to_json())
    assert again == settings
    assert again.wants_module("a.layers.3") and not again.wants_module("layers.x")


def test_defaults_travel_too() -> None:
    assert Settings.from_json(Settings(out="/r").to_json()) == Settings(out="/r")


def test_an_unknown_level_names_those_that_are_known() -> None:
    with pytest.raises(RecordError, match="level 'atom' is not known: give step or layer"):
        Settings(out="/r", level="atom")


def test_a_bad_regular_expression_is_named() -> None:
    with pytest.raises(RecordError, match=r"--modules '\(' is not a regular expression: "):
        Settings(out="/r", modules="(")


def test_windows_hold_everything_unless_given() -> None:
    settings = Settings(out="/r")
    assert settings.wants_step(10**9) and settings.wants_rank(0) and settings.wants_module("")


def test_windows_are_half_open() -> None:
    settings = Settings(out="/r", steps=((2, 4), (9, 10)), ranks=((1, 3),))
    assert [step for step in range(12) if settings.wants_step(step)] == [2, 3, 9]
    assert [rank for rank in range(5) if settings.wants_rank(rank)] == [1, 2]


def test_a_module_is_searched_for_not_matched_whole() -> None:
    settings = Settings(out="/r", modules="attn")
    assert settings.wants_module("layers.0.attn.proj") and not settings.wants_module("layers.0")
