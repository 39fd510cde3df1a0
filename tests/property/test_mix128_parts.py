"""mix128 is of the logical bytes, and parts that are cut anywhere add up or are refused."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Bytes, contents, raw_bytes, views

from fpdiff.fingerprint.digest.mix128 import device, reference, shards, vectorised
from fpdiff.fingerprint.digest.mix128.shards import Box, Incomposable

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # Wanted.

moderately = settings(deadline=None, max_examples=150)


def data_of(words: torch.Tensor) -> bytes:
    data: bytes = words.numpy().tobytes()
    return data


@moderately
@given(views())
def test_torch_and_numpy_agree_on_any_view(view: torch.Tensor) -> None:
    assert data_of(device.digest(view)) == reference.digest(raw_bytes(view))


@moderately
@given(contents(min_elements=1), st.data())
def test_flipping_any_bit_changes_both_words(content: Bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(content.data) - 1))
    flipped = bytearray(content.data)
    flipped[bit // 8] ^= 1 << bit % 8
    before, after = reference.digest(content.data), reference.digest(bytes(flipped))
    assert before[:8] != after[:8] and before[8:] != after[8:]


@st.composite
def cut(draw: st.DrawFn) -> tuple[torch.Tensor, list[Box]]:
    """Any bytes as a tensor, cut into boxes at some places of each dimension."""
    whole = draw(contents(max_side=9)).tensor()
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for size in whole.shape:
        inner = draw(st.lists(st.integers(0, size), max_size=2))
        ranges = list(pairwise(sorted({0, *inner, size}))) or [(0, 0)]
        boxes = [((*o, a), (*n, b - a)) for o, n in boxes for a, b in ranges]
    return whole, [Box(tuple(whole.shape), offset, shape) for offset, shape in boxes]


def lanes_are_cut(whole: torch.Tensor, boxes: list[Box]) -> bool:
    """Return whether some lane has elements of two boxes, told element by element."""
    owner = torch.full(whole.shape, -1)
    for number, box in enumerate(boxes):
        index = tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
        owner[index] = number
    by_byte = owner.reshape(-1).repeat_interleave(whole.itemsize).tolist()
    return any(len(set(by_byte[i : i + 8])) > 1 for i in range(0, len(by_byte), 8))


@settings(deadline=None, max_examples=300)
@given(cut())
def test_parts_add_up_just_where_no_lane_is_cut(parts: tuple[torch.Tensor, list[Box]]) -> None:
    whole, boxes = parts
    total, refused = torch.zeros(2, dtype=torch.int64), False
    for box in boxes:
        index = tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
        try:
            total += shards.sums(whole[index], box)
        except Incomposable as reason:
            assert str(box) in str(reason)
            refused = True
    assert refused == lanes_are_cut(whole, boxes)
    if not refused:
        digest = data_of(vectorised.finish(total, whole.nbytes))
        assert digest == reference.digest(raw_bytes(whole))
