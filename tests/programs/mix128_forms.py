"""Digest random tensors with every form of mix128 and print how many of them agree.

Triton's kernels run in its interpreter, or on the device with `--device cuda`. Prints
`equal NUMBER of NUMBER`, and the first tensors that no two forms agree about.
"""

import argparse
import os
import sys

if "cuda" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from fpdiff.fingerprint.digest.host import row_major
from fpdiff.fingerprint.digest.mix128 import launches, reference, vectorised

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128),
)


def draw(generator: torch.Generator) -> torch.Tensor:
    """Return a view of random bytes: any dtype, permuted, sliced, expanded, empty, misaligned."""

    def number(end: int) -> int:
        return int(torch.randint(end, (), generator=generator))

    dtype = DTYPES[number(len(DTYPES))]
    shape = [(0, 1, 2, 3, 4, 5, 8, 17)[number(8) or number(8)] for _ in range(number(4))]
    shape = shape or [number(9000) + 1] * number(2)
    count, offset = torch.Size(shape).numel(), number(5)
    data = torch.randint(256, ((count + offset) * dtype.itemsize,), generator=generator)
    if dtype is torch.bool:
        data %= 2
    tensor = data.to(torch.uint8).view(dtype)[offset:].view(shape)
    tensor = tensor.permute(torch.randperm(tensor.dim(), generator=generator).tolist())
    for dim in range(tensor.dim()):
        if number(3) == 0:
            tensor = tensor[(slice(None),) * dim + (slice(number(3), None, number(3) + 1),)]
    if number(6) == 0:
        tensor = tensor.unsqueeze(-1).expand(*tensor.shape, number(3) + 1)
    return tensor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--single", type=int, default=100, help="so many in launches of their own")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    tensors = [draw(generator) for _ in range(args.tensors)]
    expected = [reference.digest(row_major(tensor).numpy().tobytes()) for tensor in tensors]
    there = [tensor.to(args.device) for tensor in tensors]
    whole = [row_major(tensor) for tensor in there]
    # Addresses decide the width of the words that are read, so each width has a list.
    together: dict[int, torch.Tensor] = {}
    lists: launches.Lists = {}
    for width in (1, 2, 4, 8):
        numbers = [n for n, one in enumerate(whole) if launches.word_bytes([one]) == width]
        assert numbers, width
        digests = torch.empty((len(numbers), 2), dtype=torch.int64, device=args.device)
        for _ in range(2 if width == 1 else 1):  # Laid out anew, and as they are known.
            digests.fill_(-1)
            launches.digest_many([whole[n] for n in numbers], digests, lists)
        together.update(zip(numbers, digests, strict=True))
    assert len(lists) == 4
    equal = 0
    for number, tensor in enumerate(there):
        found = [vectorised.digest(tensor), together[number]]
        if number < args.single:
            found.append(launches.digest(whole[number]))
        if all(words.cpu().numpy().tobytes() == expected[number] for words in found):
            equal += 1
        else:
            print("unequal", number, tensor.dtype, tuple(tensor.shape), tensor.stride())
    print(f"equal {equal} of {args.tensors}")


if __name__ == "__main__":
    main()
