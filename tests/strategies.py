"""Nasty tensors: a hand-picked pool, and a Hypothesis strategy over bytes, dtypes and layouts.

`raw_bytes` is the reference that digests are held to. It reads the storage element by element
with numpy and asks torch for nothing but offset, shape, strides and the two lazy bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float4_e2m1fn_x2,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = {torch.complex32: "u2", torch.complex64: "u4", torch.complex128: "u8"}
"""Complex dtypes with the unsigned integer of the size of one of their halves."""


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the logical row-major bytes of a strided tensor."""
    if not tensor.numel():
        return b""
    size = tensor.itemsize
    storage = np.frombuffer(bytes(memory_of(tensor.untyped_storage())), np.uint8)
    elements = np.ndarray(
        tuple(tensor.shape),
        f"V{size}",
        storage,
        tensor.storage_offset() * size,
        [stride * size for stride in tensor.stride()],
    )
    data: bytes = elements.tobytes()
    if not tensor.is_conj() and not tensor.is_neg():
        return data
    half = COMPLEX.get(tensor.dtype, f"u{size}")
    words = np.frombuffer(data, half).reshape(-1, 2 if tensor.is_complex() else 1).copy()
    sign = words.dtype.type(1 << (8 * words.itemsize - 1))
    if tensor.is_conj():
        words[:, 1] ^= sign
    if tensor.is_neg():
        words ^= sign
    return bytes(words.tobytes())


def memory_of(storage: torch.UntypedStorage) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Return the bytes of a storage, shared with it."""
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
    array: np.ndarray[tuple[int], np.dtype[np.uint8]] = tensor.numpy()
    return array


def tensor_of(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous tensor with exactly these bytes."""
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(shape)


def _filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = math.prod(shape) * dtype.itemsize
    data = bytes((37 * i + 11) % 121 for i in range(count))
    return tensor_of(data, dtype, shape)


def _payloads() -> torch.Tensor:
    words = [0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000, 1]
    return torch.from_numpy(np.array(words, np.uint32).view(np.float32))


Make = Callable[[torch.dtype], torch.Tensor]

_VIEWS: dict[str, Make] = {
    "contiguous": lambda d: _filled(d, 3, 4),
    "transposed": lambda d: _filled(d, 3, 4).t(),
    "sliced": lambda d: _filled(d, 5, 6)[1:4:2, ::3],
    "expanded": lambda d: _filled(d, 3, 1).expand(3, 4),
    "offset": lambda d: _filled(d, 9)[5:],
    "scalar": lambda d: _filled(d, 2)[1],
    "empty": lambda d: torch.empty(0, 3, dtype=d),
    "column": lambda d: _filled(d, 4, 3)[:, 1:2],
}
_COMPLEX_VIEWS: dict[str, Make] = {
    "conjugate": lambda d: _filled(d, 3, 4).conj(),
    "conjugate transposed": lambda d: _filled(d, 3, 4).mH,
    "negative": lambda d: torch._neg_view(_filled(d, 3, 4)),
}
# Torch has no kernels that materialize these for complex32.
_WIDE_COMPLEX_VIEWS: dict[str, Make] = {
    "conjugate and negative": lambda d: torch._neg_view(_filled(d, 3, 4).conj()).t(),
    "imaginary part of a conjugate": lambda d: _filled(d, 3).conj().imag,
}
_REAL_VIEWS: dict[str, Make] = {"negative": lambda d: torch._neg_view(_filled(d, 3, 4))}


def _pool() -> dict[str, Callable[[], torch.Tensor]]:
    pool: dict[str, Callable[[], torch.Tensor]] = {}
    for views, dtypes in (
        (_VIEWS, DTYPES),
        (_COMPLEX_VIEWS, tuple(COMPLEX)),
        (_WIDE_COMPLEX_VIEWS, (torch.complex64, torch.complex128)),
        (_REAL_VIEWS, (torch.float32, torch.float64)),
    ):
        for dtype in dtypes:
            for name, make in views.items():
                pool[f"{str(dtype).removeprefix('torch.')} {name}"] = partial(make, dtype)
    pool["channels last"] = lambda: _filled(torch.float32, 2, 3, 4, 5).contiguous(
        memory_format=torch.channels_last
    )
    pool["channels last, one channel"] = lambda: _filled(torch.float32, 2, 1, 4, 5).contiguous(
        memory_format=torch.channels_last
    )
    pool["channels last 3d"] = lambda: _filled(torch.float32, 2, 3, 2, 4, 5).contiguous(
        memory_format=torch.channels_last_3d
    )
    pool["NaN payloads, infinities, negative zero"] = _payloads
    pool["overlapping windows"] = lambda: _filled(torch.float32, 9).unfold(0, 4, 1)
    pool["last dimension of size 1 with a stride"] = lambda: _filled(torch.int16, 4, 4)[:, :1]
    pool["one element with a stride"] = lambda: _filled(torch.int64, 4)[1::3]
    pool["six dimensions"] = lambda: _filled(torch.int16, 2, 1, 3, 1, 2, 2).permute(
        5, 3, 1, 0, 4, 2
    )
    pool["requires grad"] = lambda: _filled(torch.float32, 3).requires_grad_()
    pool["a graph behind it"] = lambda: _filled(torch.float32, 3).requires_grad_() * 2
    pool["larger than what is always digested anew"] = lambda: _filled(torch.float32, 200, 100)
    pool["larger, transposed"] = lambda: _filled(torch.float32, 200, 100).t()
    return pool


POOL = _pool()
"""Name of each strided tensor, and a function that makes it anew."""


@dataclass(frozen=True)
class Bytes:
    """A contiguous tensor as bytes, dtype and shape: what Hypothesis shrinks and prints."""

    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        """Return the tensor."""
        return tensor_of(self.data, self.dtype, self.shape)


@st.composite
def contents(
    draw: st.DrawFn,
    *,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    min_elements: int = 0,
    max_side: int = 5,
) -> Bytes:
    """Any bytes as a tensor of any dtype and of at most three dimensions."""
    dtype = draw(st.sampled_from(dtypes))
    sides = st.integers(1 if min_elements else 0, max_side)
    shape = tuple(draw(st.lists(sides, max_size=3)))
    if math.prod(shape) < min_elements:
        shape = (min_elements,)
    size = math.prod(shape) * dtype.itemsize
    return Bytes(draw(st.binary(min_size=size, max_size=size)), dtype, shape)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of any bytes: permuted, sliced, expanded, conjugate, negative."""
    tensor = draw(contents()).tensor()
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    for dim in range(tensor.dim()):
        start, step = draw(st.integers(0, 2)), draw(st.integers(1, 3))
        stop = draw(st.integers(start, 5))
        tensor = tensor[(slice(None),) * dim + (slice(start, stop, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(draw(st.integers(0, tensor.dim())))
        tensor = tensor.expand([draw(st.integers(1, 3)) if n == 1 else n for n in tensor.shape])
    # Torch's own resolution of these bits does not keep every NaN; that is the program's, not ours.
    if tensor.is_complex() and draw(st.booleans()):
        tensor = tensor.conj()
    return tensor
