"""Add the sums of a distributed tensor's shards up, and compare with the whole's digest.

Four ranks. Rank 0 prints `NAME: equal`, `NAME: unequal` or `NAME: refused: REASON` for each layout.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard

from fpdiff.fingerprint.digest.mix128 import shards, vectorised

ROWS, COLUMNS = Shard(0), Shard(1)
LAYOUTS: list[tuple[str, tuple[int, ...], torch.dtype, tuple[Placement, ...]]] = [
    ("rows", (8, 4), torch.float32, (ROWS,)),
    ("uneven rows", (10, 4), torch.float32, (ROWS,)),
    ("fewer rows than ranks", (3, 4), torch.bfloat16, (ROWS,)),
    ("a vector, last lane not filled", (29,), torch.uint8, (ROWS,)),
    ("a vector", (46,), torch.bfloat16, (ROWS,)),
    ("columns", (5, 16), torch.bfloat16, (COLUMNS,)),
    ("uneven columns", (5, 14), torch.float32, (COLUMNS,)),
    ("the middle dimension", (3, 6, 4), torch.float16, (COLUMNS,)),
    ("the last dimension", (3, 2, 8), torch.float64, (Shard(2),)),
    ("copies", (5, 5), torch.bfloat16, (Replicate(),)),
    ("rows and columns", (6, 12), torch.float32, (ROWS, COLUMNS)),
    ("uneven rows and columns", (7, 10), torch.float64, (ROWS, COLUMNS)),
    ("columns and rows", (7, 10), torch.int64, (COLUMNS, ROWS)),
    ("rows twice", (11, 4), torch.float16, (ROWS, ROWS)),
    ("columns, copied", (3, 16), torch.bfloat16, (Replicate(), COLUMNS)),
    ("rows, copied within", (6, 4), torch.bfloat16, (ROWS, Replicate())),
    ("columns of half a lane", (4, 4), torch.float32, (COLUMNS,)),
    ("rows that do not fill lanes", (4, 3), torch.bfloat16, (ROWS,)),
]


def answer(tensor: DTensor, whole: torch.Tensor) -> str:
    sums, reason = torch.zeros(2, dtype=torch.int64), ""
    try:
        sums = shards.sums_of_distributed(tensor)
    except shards.Incomposable as refusal:
        reason = f"refused: {refusal}"
    reasons = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    dist.all_reduce(sums)  # Adds int64 modulo 2^64.
    found = vectorised.finish(sums, whole.nbytes)
    equal = "equal" if torch.equal(found, vectorised.digest(whole)) else "unequal"
    return max(reasons, key=bool) or equal


def main() -> None:
    dist.init_process_group("gloo")
    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2))
    generator = torch.Generator().manual_seed(0)
    answers = {}
    for name, shape, dtype, placements in LAYOUTS:
        whole = torch.randint(256, (*shape, dtype.itemsize), generator=generator)
        whole = whole.to(torch.uint8).view(dtype).view(shape)
        mesh = line if len(placements) == 1 else square
        answers[name] = answer(distribute_tensor(whole, mesh, placements), whole)
    part = torch.ones(4, 4)
    for name, placement in (("sums", Partial()), ("strided", _StridedShard(0, split_factor=2))):
        whole = part if name == "sums" else torch.ones(8, 4)
        local = DTensor.from_local(part, square, (placement, Replicate()), run_check=False)
        answers[name] = answer(local, whole)
    changed = torch.arange(32.0).view(8, 4)
    distributed = distribute_tensor(changed, line, (ROWS,))
    if dist.get_rank() == 2:
        distributed.to_local()[1, 2] += 1
    answers["one element differs"] = answer(distributed, changed)
    if dist.get_rank() == 0:
        for name, text in answers.items():
            print(f"{name}: {text}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
