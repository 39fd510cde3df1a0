"""A digest is of the logical bytes and of nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import FLOATS, Bytes, contents, memory_of, raw_bytes, views

from fpdiff.fingerprint.digest.cache import SMALL_BYTES, DigestCache
from fpdiff.fingerprint.digest.host import digest, look

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # Wanted.

moderately = settings(deadline=None, max_examples=150)


@moderately
@given(views())
def test_a_view_has_the_digest_of_its_row_major_bytes(view: torch.Tensor) -> None:
    expected = xxhash.xxh3_128_digest(raw_bytes(view))
    assert digest(view) == expected
    if view.itemsize in (1, 2, 4, 8) and not view.is_conj():
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        whole = view.view(integers[view.itemsize])
        assert digest(whole.clone(memory_format=torch.contiguous_format)) == expected


@moderately
@given(contents(), st.data())
def test_shape_and_dtype_do_not_matter(content: Bytes, data: st.DataObject) -> None:
    tensor = content.tensor()
    expected = digest(tensor)
    assert digest(tensor.reshape(-1)) == expected == xxhash.xxh3_128_digest(content.data)
    assert digest(tensor.reshape(-1).view(torch.uint8)) == expected


@moderately
@given(contents(min_elements=1), st.data())
def test_flipping_any_bit_changes_it(content: Bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(content.data) - 1))
    flipped = bytearray(content.data)
    flipped[bit // 8] ^= 1 << bit % 8
    other = Bytes(bytes(flipped), content.dtype, content.shape)
    assert digest(content.tensor()) != digest(other.tensor())


@moderately
@given(contents(min_elements=2), st.data())
def test_swapping_unequal_elements_changes_it(content: Bytes, data: st.DataObject) -> None:
    tensor = content.tensor().reshape(-1)
    size = content.dtype.itemsize
    elements = [content.data[i : i + size] for i in range(0, len(content.data), size)]
    i, j = data.draw(st.lists(st.integers(0, len(elements) - 1), min_size=2, max_size=2))
    assume(elements[i] != elements[j])
    elements[i], elements[j] = elements[j], elements[i]
    assert digest(tensor) != digest(
        Bytes(b"".join(elements), content.dtype, content.shape).tensor()
    )


@moderately
@given(contents(min_elements=2, dtypes=(torch.uint8, torch.float32)), st.randoms())
def test_a_permutation_changes_it_unless_it_changes_nothing(content: Bytes, random: object) -> None:
    tensor = content.tensor().reshape(-1)
    order = list(range(len(tensor)))
    random.shuffle(order)  # type: ignore[attr-defined]
    permuted = tensor[order]
    assert (digest(tensor) == digest(permuted)) == (raw_bytes(tensor) == raw_bytes(permuted))


@moderately
@given(contents(min_elements=1, dtypes=FLOATS))
def test_negation_changes_it(content: Bytes) -> None:
    tensor = content.tensor()
    assert digest(tensor) != digest(torch.neg(tensor)) or bool(tensor.isnan().any())


@moderately
@given(contents(min_elements=1))
def test_no_bit_changes_by_looking(content: Bytes) -> None:
    tensor = content.tensor()
    digest(tensor.t() if tensor.dim() == 2 else tensor)
    assert raw_bytes(tensor) == content.data and tensor._version == 0


SIDE = 160  # 160 * 160 * 4 bytes is beyond SMALL_BYTES.
assert SIDE * SIDE * 4 > SMALL_BYTES

WRITES: list[Callable[[torch.Tensor], object]] = [
    lambda t: t.add_(1),
    lambda t: t[3].mul_(2),
    lambda t: t.t()[5, 7:9].add_(1),
    lambda t: t.fill_(1),
    # Past the version counter, where only a sample is looked at: these change every byte.
    lambda t: t.data.view(torch.int32).bitwise_not_(),
    lambda t: np.invert(t.numpy().view(np.int32), out=t.numpy().view(np.int32)),
    lambda t: np.invert(memory_of(t.untyped_storage()), out=memory_of(t.untyped_storage())),
    lambda t: setattr(t, "data", torch.full_like(t, 5)),
    lambda t: t.set_(torch.full((SIDE * SIDE,), 6.0).untyped_storage(), 0, t.shape, t.stride()),
    lambda t: None,
]
LOOKS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t,
    lambda t: t.view(-1),
    lambda t: t.t(),
    lambda t: t[1:],
    lambda t: t[:, 1:],
    lambda t: t.detach(),
    lambda t: t.clone(),
    lambda t: t.view(torch.int32),
]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(WRITES), st.sampled_from(LOOKS), st.booleans())))
def test_remembering_never_shows(
    course: list[tuple[Callable[..., object], Callable[..., torch.Tensor], bool]],
) -> None:
    cache, tensor = DigestCache(), torch.zeros(SIDE, SIDE)
    for write, look_at, sweep in course:
        write(tensor)
        seen = look_at(tensor)
        assert cache.digest(seen, look(seen)) == digest(seen)
        if sweep:
            cache.sweep()
