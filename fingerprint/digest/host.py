"""XXH3-128 over the logical row-major bytes of a tensor, on the host.

Logical means: the elements in row-major order of the tensor's own indices, whatever the strides,
with conjugate and negative bits resolved. Equal digests mean equal bits: +0 and -0 differ, and so
do two NaNs with other payloads. Shape and dtype are not mixed in; a site records them beside it.

A tensor that is made of several (sparse, quantized, nested, a wrapper subclass) is digested part by
part; its digest is that of the parts' digests in a fixed order. A distributed tensor is its local
shard.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
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


@dataclass(slots=True)
class PlainView:
    """How a plain tensor lies in memory: strided, not quantized, no subclass.

    Attributes:
        storage: the tensor's storage.
        where: what, beside storage and version, decides the logical bytes. Two contiguous views
            of the same bytes share it whatever their shapes.
        start_byte: of the first element in the storage; `end_byte` of the end of the last.
        extent_bytes: from the one to the other.
        is_row_major: the extent is the logical row-major bytes.
        is_dense: the extent holds its elements and nothing else, in whatever order.
        is_on_host: the memory can be read.
        has_memory: the storage holds the extent; FSDP frees storages under live tensors.
    """

    storage: torch.UntypedStorage
    where: tuple[object, ...]
    start_byte: int
    end_byte: int
    extent_bytes: int
    is_row_major: bool
    is_dense: bool
    is_on_host: bool
    has_memory: bool


OfPlain: TypeAlias = Callable[[torch.Tensor, PlainView], bytes]
"""Returns the digest of a plain tensor."""


def look(tensor: torch.Tensor) -> PlainView | None:
    """Return how a plain tensor lies in memory; None for every other tensor.

    This is on the path of every event: it reads each property once.
    """
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return None
    if tensor.is_quantized or tensor.is_nested:
        return None
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # Inside a functorch transform.
        return None
    start: int = tensor.storage_offset() * tensor.itemsize  # type: ignore[assignment]  # No SymInt.
    resolved = not tensor.is_conj() and not tensor.is_neg()
    if is_dense := tensor.is_contiguous():
        extent_bytes = tensor.nbytes
        where: tuple[object, ...] = (start, extent_bytes)
        if not resolved:
            where = (start, extent_bytes, tensor.is_conj(), tensor.is_neg())
        is_row_major = resolved
    else:
        shape, stride = tuple(tensor.shape), tensor.stride()
        last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        extent_bytes = (last + 1) * tensor.itemsize if tensor.numel() else 0
        where = (start, shape, stride, tensor.dtype, tensor.is_conj(), tensor.is_neg())
        is_row_major, is_dense = False, extent_bytes == tensor.nbytes
    end = start + extent_bytes
    return PlainView(
        storage,
        where,
        start,
        end,
        extent_bytes,
        is_row_major,
        is_dense,
        tensor.is_cpu,
        end <= storage.nbytes(),
    )


def digest(
    tensor: torch.Tensor, of_plain: OfPlain | None = None, now: OfPlain | None = None
) -> bytes:
    """Return the 16-byte digest of a tensor of any dtype, layout, device and shape.

    The caller has switched torch functions off (`record.quiet`); nothing is drawn, and only a
    tensor that is not contiguous on the host is copied.

    Args:
        tensor: the tensor.
        of_plain: digests a plain tensor; `digest_plain` by default.
        now: digests one of several parts, whose digests are needed at once; `of_plain` by default.

    Raises:
        Undigestible: a fake or meta tensor, one inside a functorch transform, a result still in
            flight, a lazy module's parameter, or one whose storage has been freed.
    """
    view = look(tensor)
    if view is not None:
        return (of_plain or digest_plain)(tensor, view)
    parts = list(_parts(tensor))
    if len(parts) == 1:
        return digest(parts[0], of_plain, now)
    return digest_bytes(b"".join(digest(part, now or of_plain) for part in parts))


def digest_plain(
    tensor: torch.Tensor,
    view: PlainView,
    of_memory: Callable[[Memory], bytes] = xxhash.xxh3_128_digest,
) -> bytes:
    """Return the 16-byte digest of a plain tensor.

    Args:
        tensor: the tensor.
        view: what `look` returns for it.
        of_memory: digests host memory.

    Raises:
        Undigestible: see `digest`.
    """
    if view.is_on_host and view.is_row_major and view.has_memory:
        return of_memory(memory(tensor, view.extent_bytes))
    check_readable(tensor, view)
    if not view.is_on_host:
        with torch._C._DisableTorchDispatch():
            tensor = tensor.detach().cpu()
    copy = row_major(tensor)
    return of_memory(memory(copy, copy.nbytes))


def check_readable(tensor: torch.Tensor, view: PlainView) -> None:
    """Check that a plain tensor has bytes, and that they can be read now.

    Raises:
        Undigestible: it has none, or the device is noting down a graph and runs nothing.
    """
    if tensor.is_meta:
        raise Undigestible("meta tensor")
    if not view.has_memory and tensor.numel():
        raise Undigestible("freed storage")
    if _is_in_capture(tensor):
        raise Undigestible("graph capture")


@lru_cache(maxsize=4096)
def _block(size_bytes: int) -> type[Memory]:
    """Return the type of so much memory: made anew each time, it would cost more than its use."""
    return ctypes.c_char * size_bytes


def memory(tensor: torch.Tensor, size_bytes: int) -> Memory:
    """Return the host memory from a tensor's first element on; valid while the tensor lives."""
    return _block(size_bytes).from_address(tensor.data_ptr())


def memory_range(storage: torch.UntypedStorage, start: int, end: int) -> Memory:
    """Return the host memory of a storage from byte `start` to `end`; valid while it lives."""
    return _block(end - start).from_address(storage.data_ptr() + start)


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row-major copy as integers of the element size: not every dtype has a copy kernel.

    It is the tensor itself, as integers, where that is row-major already.

    Raises:
        Undigestible: torch cannot copy it.
    """
    with torch._C._DisableTorchDispatch():
        tensor = tensor.detach()
        try:
            if tensor.is_conj() or tensor.is_neg():
                tensor = tensor.resolve_conj().resolve_neg()
            if tensor.dtype is torch.complex128:
                tensor = torch.view_as_real(tensor)
            return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()]).contiguous()
        except NotImplementedError as error:  # A conjugate and negative view of complex32, say.
            raise Undigestible(f"no copy kernel for {tensor.dtype}") from error


def shape_of(tensor: torch.Tensor) -> torch.Size | tuple[int, ...]:
    """Return a tensor's shape, with -1 for the sizes that differ within a nested tensor."""
    if not tensor.is_nested:
        return tensor.shape
    if tensor.layout is torch.strided:
        return (tensor.size(0), *(-1 for _ in range(tensor.dim() - 1)))
    return tuple(size if isinstance(size, int) else -1 for size in tensor.shape)


def sparse_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that a sparse one lies in, by their names; none of any other tensor."""
    names = _SPARSE_PARTS.get(tensor.layout, ())
    return [(name.lstrip("_"), getattr(tensor, name)()) for name in names]


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.is_nested and tensor.layout is torch.strided:
        plain = tensor.detach()
        yield plain._nested_tensor_size()
        yield from plain.unbind()
        return
    if type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_quantized:
        raise Undigestible("functorch transform")
    if torch.nn.parameter.is_lazy(tensor):
        raise Undigestible("uninitialized parameter")
    kind = type(tensor).__name__
    if kind == "FakeTensor":
        raise Undigestible("fake tensor")
    if kind == "AsyncCollectiveTensor":
        # Reading it would wait for the collective, which the program has not done yet.
        raise Undigestible("collective in flight")
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        parts = (getattr(tensor, name) for name in names)
        # A distributed tensor lists its device mesh among them.
        yield from (part for part in parts if isinstance(part, torch.Tensor))
    elif tensor.layout in _SPARSE_PARTS:
        yield from (part for _, part in sparse_parts(tensor))
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


def is_number(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is plain and holds one real number."""
    if tensor.is_nested or tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
        return False
    return look(tensor) is not None


def scalar(tensor: torch.Tensor) -> float | None:
    """Return the number in a one-element real tensor, waiting for its device; else None.

    None too while the device is noting down a graph: asking it then would spoil the graph.
    """
    if not is_number(tensor) or _is_in_capture(tensor):
        return None
    with torch._C._DisableTorchDispatch():
        return float(tensor.detach().item())


def _is_in_capture(tensor: torch.Tensor) -> bool:
    on_device = not tensor.is_cpu and torch.cuda.is_available()
    return on_device and torch.cuda.is_current_stream_capturing()
