"""XXH3-128 over the logical row-major bytes of a tensor, on the host.

Logical means: the elements in row-major order of the tensor's own indices, whatever the strides,
with conjugate and negative bits resolved. Equal digests mean equal bits: +0 and -0 differ, and so
do two NaNs with other payloads. Shape and dtype are not mixed in; a site records them beside it.

A tensor that is made of several (sparse, quantized, a wrapper subclass) is digested part by part;
its digest is that of the parts' digests in a fixed order. A distributed tensor is its local shard.
"""

import ctypes
from collections.abc import Iterator
from typing import TypeAlias

import torch
import xxhash

_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})

Memory: TypeAlias = ctypes.Array[ctypes.c_char]


class Undigestible(Exception):
    """A tensor whose bytes cannot be read; its text is the reason that a blind spot is named by."""


def digest_bytes(data: bytes | bytearray | memoryview | Memory) -> bytes:
    """Return the 16-byte XXH3-128 digest of `data`."""
    return xxhash.xxh3_128_digest(data)


def digest(tensor: torch.Tensor) -> bytes:
    """Return the 16-byte digest of a tensor of any dtype, layout, device and shape.

    The caller has switched torch functions and gradients off (`record.quiet`); nothing is drawn,
    and only a tensor that is not contiguous on the host is copied.

    Raises:
        Undigestible: a fake or meta tensor, one inside a functorch transform, a result still in
            flight, or one whose storage has been freed.
    """
    if is_plain(tensor):
        return digest_bytes(host_view(tensor))
    parts = list(_parts(tensor))
    if len(parts) == 1:
        return digest(parts[0])
    return digest_bytes(b"".join(digest(part) for part in parts))


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's own storage holds its elements: strided, not quantized."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_quantized


def host_view(tensor: torch.Tensor) -> Memory:
    """Return the row-major bytes of a plain tensor; without a copy if they lie so on the host.

    Raises:
        Undigestible: see `digest`.
    """
    if tensor.device.type != "cpu":
        tensor = _to_host(tensor)
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        num_bytes(tensor)
        tensor = _row_major(tensor)
    view = memory(tensor)
    view._owner = tensor  # type: ignore[attr-defined]  # keeps a copy alive as long as its view
    return view


def memory(tensor: torch.Tensor) -> Memory:
    """Return the host memory from a plain tensor's first element to its last.

    Raises:
        Undigestible: see `digest`.
    """
    return (ctypes.c_char * num_bytes(tensor)).from_address(tensor.data_ptr())


def num_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes lie between a plain tensor's first element and the end of its last.

    Raises:
        Undigestible: the tensor's storage does not hold so many.
    """
    try:
        size_bytes = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        raise Undigestible("functorch transform") from error
    if tensor.is_contiguous():
        used_bytes = tensor.nbytes
    else:
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        used_bytes = (last + 1) * tensor.element_size() if tensor.numel() else 0
    # FSDP frees a storage under a live tensor by resizing it to nothing; reading would crash.
    if used_bytes and tensor.storage_offset() * tensor.element_size() + used_bytes > size_bytes:
        raise Undigestible("freed storage")
    return used_bytes


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
        raise Undigestible("meta tensor")
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise Undigestible("graph capture")
    with torch._C._DisableTorchDispatch():
        return tensor.detach().cpu()


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row-major copy; through integers, since not every dtype has a copy kernel."""
    with torch._C._DisableTorchDispatch():
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if tensor.dtype is torch.complex128:
            tensor = torch.view_as_real(tensor)
        return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()]).contiguous()


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    kind = type(tensor).__name__
    if kind == "FakeTensor":
        raise Undigestible("fake tensor")
    if kind == "AsyncCollectiveTensor":
        # Reading it would wait for the collective, which the program has not done yet.
        raise Undigestible("collective in flight")
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        yield from (getattr(tensor, name) for name in names)
    elif tensor.layout in _SPARSE_PARTS:
        yield from (getattr(tensor, name)() for name in _SPARSE_PARTS[tensor.layout])
    elif tensor.is_quantized:
        yield tensor.int_repr()
        yield from _quantizer(tensor)
    elif tensor.layout is torch.strided:
        yield tensor.as_subclass(torch.Tensor)
    else:
        yield tensor.to_dense()


def _quantizer(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)
    else:
        yield tensor.q_per_channel_scales()
        yield tensor.q_per_channel_zero_points()


def geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what, beside storage and version, decides a plain tensor's logical bytes.

    Two contiguous views of the same bytes share a geometry whatever their shapes.
    """
    start = tensor.storage_offset() * tensor.element_size()
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return (start, tensor.nbytes)
    shape, stride = tuple(tensor.shape), tensor.stride()
    return (start, shape, stride, tensor.dtype, tensor.is_conj(), tensor.is_neg())


def scalar(tensor: torch.Tensor) -> float | None:
    """Return the number in a one-element real tensor, else None."""
    if tensor.numel() != 1 or tensor.is_complex() or not is_plain(tensor):
        return None
    with torch._C._DisableTorchDispatch():
        return float(tensor.detach().item())
