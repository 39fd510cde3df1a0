import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import xxhash
from strategies import POOL, raw_bytes
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.func import functional_call, grad, vmap

from fpdiff.fingerprint.digest.host import (
    Undigestible,
    digest,
    digest_bytes,
    look,
    scalar,
    shape_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),  # Wanted here.
    pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse BS. tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),  # Deprecated, still in use.
]


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", POOL)
def test_a_digest_is_xxh3_128_of_the_logical_row_major_bytes(name: str) -> None:
    tensor = POOL[name]()
    assert digest(tensor) == xxhash.xxh3_128_digest(raw_bytes(tensor))


def test_looking_changes_nothing() -> None:
    states = (torch.get_rng_state(), random.getstate(), repr(np.random.get_state()))
    for name, make in POOL.items():
        tensor = make()
        before = (raw_bytes(tensor), tensor._version, tensor.grad_fn, tensor.stride())
        digest(tensor)
        after = (raw_bytes(tensor), tensor._version, tensor.grad_fn, tensor.stride())
        assert after == before, name
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), repr(np.random.get_state())) == states[1:]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_two_zeros_differ(dtype: torch.dtype) -> None:
    zero = torch.zeros(3, dtype=dtype)
    assert digest(zero) != digest(-zero)


def test_nans_with_other_payloads_differ() -> None:
    words = np.array([[0x7FC00000], [0x7FC00001], [0xFFC00000], [0x7F800001]], np.uint32)
    nans = torch.from_numpy(words.view(np.float32))
    assert nans.isnan().all()
    assert len({digest(nan) for nan in nans}) == 4


def test_shape_and_dtype_are_not_mixed_in() -> None:
    values = torch.arange(12, dtype=torch.int32)
    expected = digest(values)
    assert digest(values.view(3, 4)) == digest(values.view(2, 1, 6)) == expected
    assert digest(values.view(torch.float32)) == digest(values.view(torch.uint8)) == expected
    assert digest(values.view(torch.complex64)) == expected


def test_a_zero_dimensional_tensor_equals_one_of_one_element() -> None:
    assert digest(torch.tensor(1.5)) == digest(torch.tensor([1.5]))


def test_empty_tensors_are_all_equal() -> None:
    assert (
        digest(torch.empty(0)) == digest(torch.empty(4, 0, dtype=torch.int64)) == digest_bytes(b"")
    )


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer])
def test_parameters_and_buffers_are_what_they_hold(kind: Any) -> None:
    tensor = torch.arange(6.0)
    assert digest(kind(tensor)) == digest(tensor)


class Named(torch.Tensor):
    """A subclass without parts of its own."""


class Pair(torch.Tensor):
    """A wrapper of two tensors."""

    left: torch.Tensor
    right: torch.Tensor

    @classmethod
    def of(cls, left: torch.Tensor, right: torch.Tensor) -> "Pair":
        pair: Pair = torch.Tensor._make_wrapper_subclass(cls, left.shape)
        pair.left, pair.right = left, right
        return pair

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["left", "right"], None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # Torch types it as an instance's method.
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{func} was called by looking")


def test_a_plain_subclass_is_the_tensor_that_it_is() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert digest(tensor.as_subclass(Named)) == digest(tensor)
    assert digest(tensor.t().as_subclass(Named)) == digest(tensor.t())


def test_a_wrapper_is_the_digest_of_its_parts_digests() -> None:
    left, right = torch.arange(3.0), torch.ones(3)
    expected = digest_bytes(digest(left) + digest(right))
    assert digest(Pair.of(left, right)) == expected
    assert digest(Pair.of(right, left)) != expected


def test_a_distributed_tensor_is_its_local_shard(gloo: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    tensor = torch.arange(8.0).view(4, 2)
    for placement in (Shard(0), Replicate()):
        assert digest(distribute_tensor(tensor, mesh, [placement])) == digest(tensor)


def _sparse(layout: torch.layout, values: torch.Tensor) -> torch.Tensor:
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        return values.to_sparse(layout=layout, blocksize=(2, 2))
    return values.to_sparse(layout=layout)


@pytest.mark.parametrize(
    "layout",
    [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc],
)
def test_sparse_tensors_are_their_indices_and_values(layout: torch.layout) -> None:
    dense = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 3]])
    moved = torch.tensor([[1.0, 0, 0, 0], [2, 0, 0, 3]])
    changed = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 4]])
    found = {digest(_sparse(layout, tensor)) for tensor in (dense, moved, changed)}
    assert len(found) == 3
    assert digest(_sparse(layout, dense.clone())) in found


def test_coalescing_a_sparse_tensor_shows() -> None:
    twice = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
    )
    assert not twice.is_coalesced()
    assert digest(twice) != digest(twice.coalesce())
    assert not twice.is_coalesced()


def _per_tensor(scale: float = 0.5, zero: int = 3) -> torch.Tensor:
    # The same integers whatever the scale.
    values = (torch.arange(6.0) - zero) * scale
    return torch.quantize_per_tensor(values, scale, zero, torch.quint8)


def test_scale_and_zero_point_of_a_quantized_tensor_matter() -> None:
    tensors = [_per_tensor(), _per_tensor(scale=0.25), _per_tensor(zero=4)]
    assert torch.equal(tensors[0].int_repr(), tensors[1].int_repr())
    assert len({digest(tensor) for tensor in tensors}) == 3
    assert digest(_per_tensor()) == digest(_per_tensor())


def _per_channel(scales: list[float], zero: int = 0, axis: int = 0) -> torch.Tensor:
    values = torch.ones(2, 2, dtype=torch.int8)
    return torch._make_per_channel_quantized_tensor(
        values, torch.tensor(scales, dtype=torch.float64), torch.tensor([zero, zero]), axis
    )


def test_scales_and_zero_points_of_channels_matter() -> None:
    tensors = [_per_channel([0.5, 0.5]), _per_channel([0.5, 0.25]), _per_channel([0.5, 0.5], 1)]
    assert len({digest(tensor) for tensor in tensors}) == 3
    assert digest(_per_channel([0.5, 0.25])) == digest(_per_channel([0.5, 0.25]))


def test_a_meta_tensor_has_no_bytes() -> None:
    with pytest.raises(Undigestible, match="^meta tensor$"):
        digest(torch.empty(3, device="meta"))
    with pytest.raises(Undigestible, match="^meta tensor$"):
        digest(torch.empty(3, 4, device="meta").t())


def test_a_fake_tensor_has_no_bytes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    with pytest.raises(Undigestible, match="^fake tensor$"):
        digest(fake)


def test_inside_a_functorch_transform_there_are_no_bytes() -> None:
    reasons = []

    def square(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(Undigestible) as caught:
            digest(x)
        reasons.append(str(caught.value))
        return (x * x).sum()

    vmap(square)(torch.ones(2, 3))
    grad(square)(torch.ones(3))
    vmap(grad(square))(torch.ones(2, 3))
    assert reasons == ["functorch transform"] * 3


def test_functional_call_is_an_ordinary_call() -> None:
    layer = torch.nn.Linear(2, 2)
    out = functional_call(layer, dict(layer.named_parameters()), torch.ones(1, 2))
    assert digest(out) == xxhash.xxh3_128_digest(out.detach().numpy().tobytes())


def test_a_freed_storage_has_no_bytes() -> None:
    tensor = torch.ones(100)
    views = (tensor, tensor[::2], tensor.view(10, 10).t())
    tensor.untyped_storage().resize_(0)
    for view in views:
        with pytest.raises(Undigestible, match="^freed storage$"):
            digest(view)


def test_a_storage_too_short_for_its_tensor_is_freed() -> None:
    tensor = torch.ones(100)
    tensor.untyped_storage().resize_(200)
    with pytest.raises(Undigestible, match="^freed storage$"):
        digest(tensor)
    assert digest(tensor[:50]) == digest(torch.ones(50))


def test_a_collective_in_flight_is_not_waited_for() -> None:
    with pytest.raises(Undigestible, match="^collective in flight$"):
        digest(AsyncCollectiveTensor(torch.ones(3)))


def test_a_dtype_without_a_copy_kernel_is_undigestible() -> None:
    both = torch._neg_view(torch.zeros(3, dtype=torch.complex32).conj())
    with pytest.raises(Undigestible, match="^no copy kernel for torch.complex32$"):
        digest(both)


def test_no_user_mode_sees_the_look() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Loud(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            raise AssertionError(f"{func} was called by looking")

    tensors = [make() for name, make in POOL.items() if "graph" not in name]
    with Loud():  # type: ignore[no-untyped-call]
        for tensor in tensors:
            digest(tensor)


def test_looking_warns_of_nothing() -> None:
    tensors = [make() for make in POOL.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tensor in tensors:
            digest(tensor)


def test_only_plain_tensors_have_a_place() -> None:
    assert look(torch.ones(3).as_subclass(Named)) is None
    assert look(torch.eye(3).to_sparse()) is None
    assert look(_per_tensor()) is None


def test_contiguous_views_of_the_same_bytes_share_a_place() -> None:
    tensor = torch.zeros(4, 6)
    places = [look(view) for view in (tensor, tensor.view(24), tensor.view(2, 12), tensor.detach())]
    assert len({place.where for place in places if place}) == 1
    others = [look(view) for view in (tensor.t(), tensor[1:], tensor[:, :3], tensor[:2])]
    assert len({place.where for place in others if place} | {places[0].where}) == 5  # type: ignore[union-attr]


def test_the_place_of_a_conjugate_is_another() -> None:
    tensor = torch.zeros(3, dtype=torch.complex64)
    plain, conjugate = look(tensor), look(tensor.conj())
    assert plain is not None and conjugate is not None and plain.where != conjugate.where


@pytest.mark.parametrize(
    ("tensor", "number"),
    [
        (torch.tensor(1.5), 1.5),
        (torch.tensor([[2]]), 2.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5),
        (torch.tensor([1.0, 2.0]), None),
        (torch.tensor(1j), None),
        (torch.empty(0), None),
        (torch.empty((), device="meta"), None),
        (torch.ones(1, 1).to_sparse(), None),
    ],
)
def test_the_number_in_a_tensor(tensor: torch.Tensor, number: float | None) -> None:
    assert scalar(tensor) == number


def nested(parts: list[torch.Tensor], layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The strided layout is a prototype.
        return torch.nested.nested_tensor(parts, layout=layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_their_parts_and_where_they_end(layout: torch.layout) -> None:
    rows = torch.arange(10.0).view(5, 2)
    same, again, cut_elsewhere, other = (
        nested([values[:cut], values[cut:]], layout)
        for values, cut in ((rows, 2), (rows.clone(), 2), (rows, 3), (-rows, 2))
    )
    assert look(same) is None
    assert digest(same) == digest(again)
    assert len({digest(one) for one in (same, cut_elsewhere, other)}) == 3
    assert shape_of(same) == ((2, -1, -1) if layout is torch.strided else (2, -1, 2))
    assert shape_of(rows) == (5, 2)
