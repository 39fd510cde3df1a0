"""Record a training step whose tensors Triton's kernels digest, at the rungs op and kernel.

Tensors of the host are taken for those of a device, and the kernels run in Triton's interpreter.
Prints for each rung which launches are in the record, its blind spots, and whether it is the record
of a run that was digested otherwise; at last with many tensors digested in one launch.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from pathlib import Path
from typing import Any

import torch
from torch import nn

import fpdiff
from fpdiff.fingerprint.digest.host import PlainView
from fpdiff.fingerprint.digest.mix128 import device, launches
from fpdiff.fingerprint.record.events import stepevents


def record(path: Path, level: str) -> list[tuple[Any, ...]]:
    torch.manual_seed(0)
    with fpdiff.record(path, level=level, digest="mix128"):
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    run = fpdiff.open_run(path).ranks[0]
    launched = [name for name in run.sites()["op"].to_pylist() if name and "triton" in name]
    print(level, launched, run.info["blind_spots"], run.info.get("stopped"))
    return [
        tuple(e[k] for k in ("seq", "digest")) for b in run.event_batches() for e in b.to_pylist()
    ]


def main() -> None:
    folder = Path(sys.argv[1])
    expected = {level: record(folder / f"{level} numpy", level) for level in ("op", "kernel")}
    elsewhere = property(lambda view: False, lambda view, value: None)
    setattr(PlainView, "is_on_host", elsewhere)  # noqa: B010  # It is a slot, by its type.
    device._launches = lambda tensor: launches
    for level in ("op", "kernel"):
        print(record(folder / f"{level} triton", level) == expected[level])
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from late_streams import LateStaging

    staging = LateStaging()
    setattr(stepevents, "Staging", lambda: staging)  # noqa: B010  # As on a device.
    print(record(folder / "op together", "op") == expected["op"], staging.together_put)


if __name__ == "__main__":
    main()
