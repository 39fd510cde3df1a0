"""Parts of a tensor whose sums add up to the sums of the whole, which nobody has to gather.

A part is a box: a range of indices in each dimension. Its elements lie in the row-major whole in
runs of equal length. Each run must begin and end between two lanes (or end where the whole ends);
then its lanes are lanes of the whole, and only their positions have to be told. Else two parts have
a piece of one lane each, and what is mixed of a lane cannot be put together from its pieces: such a
part is refused. Parts of the first dimension are one run, and are refused only where a row does not
fill its last lane.

It costs nothing on the device beyond the positions of the runs, which are looked up for each lane
where there are several; to put sums together costs two additions for each part.
"""

import math
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from fpdiff.fingerprint.digest.mix128 import vectorised
from fpdiff.fingerprint.digest.mix128.reference import LANE_BYTES


class Incomposable(Exception):
    """Sums of a part that do not add up to those of a whole; its text is the reason."""


@dataclass(frozen=True)
class Box:
    """A part of a whole: `shape` elements from `offset` on in a tensor of shape `whole`."""

    whole: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return the box as slices of the whole."""
        ranges = zip(self.offset, self.shape, strict=True)
        return f"[{', '.join(f'{o}:{o + n}' for o, n in ranges)}] of {list(self.whole)}"


def sums(part: torch.Tensor, box: Box) -> torch.Tensor:
    """Return the sums of a part, as two int64 words on its device.

    The sums of boxes that fill the whole add up, modulo 2^64, to those of the whole; `finish` them
    with its length in bytes.

    Args:
        part: a plain tensor of the box's shape.
        box: where it lies in the whole.

    Raises:
        Incomposable: the box's runs do not begin and end between lanes.
    """
    if tuple(part.shape) != box.shape:
        raise Incomposable(f"a part of shape {list(part.shape)} is not {box}")
    if not part.numel():
        return torch.zeros(2, dtype=torch.int64, device=part.device)
    size = part.itemsize
    starts, run = _runs(box)
    starts, run_bytes = starts * size, run * size
    ends_with_whole = int(starts[-1]) + run_bytes == math.prod(box.whole) * size
    fills_lanes = run_bytes % LANE_BYTES == 0 or (len(starts) == 1 and ends_with_whole)
    if not fills_lanes or bool((starts % LANE_BYTES).any()):
        raise Incomposable(
            f"{box} does not begin and end between lanes of {LANE_BYTES} bytes: runs of {run}"
            f" elements of {size} bytes"
        )
    run_lanes = math.ceil(run_bytes / LANE_BYTES)
    return vectorised.sums(part, (starts // LANE_BYTES).to(part.device), run_lanes)


def box_of(tensor: DTensor) -> Box | None:
    """Return which part of a distributed tensor this rank has; None if another counts for it.

    Raises:
        Incomposable: the local tensor is no part of the whole (a partial sum, say).
    """
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    offset, shape = [0] * tensor.dim(), list(tensor.shape)
    for axis, placement in enumerate(tensor.placements):
        if type(placement) is Replicate:
            if coordinate[axis]:
                return None
        elif type(placement) is Shard:
            dim = placement.dim
            chunk = math.ceil(shape[dim] / mesh.size(axis))
            start = min(chunk * coordinate[axis], shape[dim])
            offset[dim] += start
            shape[dim] = min(chunk, shape[dim] - start)
        else:
            name = type(placement).__name__
            raise Incomposable(f"the placement {name} leaves no box of the whole on a rank")
    return Box(tuple(tensor.shape), tuple(offset), tuple(shape))


def sums_of_distributed(tensor: DTensor) -> torch.Tensor:
    """Return the sums of what this rank has of a distributed tensor.

    Those of all ranks of the mesh add up to the sums of the whole; of replicas only the first
    counts, and the others' sums are 0.

    Raises:
        Incomposable: see `box_of` and `sums`.
    """
    box = box_of(tensor)
    local = tensor.to_local()
    if box is None:
        return torch.zeros(2, dtype=torch.int64, device=local.device)
    return sums(local, box)


def _runs(box: Box) -> tuple[torch.Tensor, int]:
    """Return where the runs of a box that is not empty begin in the whole, and their length."""
    inner = len(box.whole)
    run = 1
    while inner and run == math.prod(box.whole[inner:]):
        inner -= 1
        run *= box.shape[inner]
    starts = torch.zeros((), dtype=torch.int64)
    for dim in range(len(box.whole)):
        stride = math.prod(box.whole[dim + 1 :])
        count = box.shape[dim] if dim < inner else 1
        starts = starts.unsqueeze(-1) + (box.offset[dim] + torch.arange(count)) * stride
    return starts.reshape(-1), run
