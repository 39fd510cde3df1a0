"""Trains a small net with DDP; TWIST makes both ranks, or one, do something else in step 2.

With LOG the loss is reduced ahead of the gradients, in every step, which nothing depends on. With
UNUSED the net has layers that no step uses, and DDP looks for them.
"""

import os
import time

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

TWIST = os.environ.get("TWIST", "")
UNUSED = int(os.environ.get("UNUSED", "0"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        self.unused = nn.ModuleList(nn.Linear(1, size) for size in range(1, UNUSED + 1))

    def forward(self, x: Tensor, step: int) -> Tensor:
        h = torch.tanh(self.inp(x))
        rank = distributed.get_rank()
        if TWIST == "both" and step == 2:
            h = h.mul(1.5 if rank else 1.25)
        else:
            h = h.mul(1.0)
        if TWIST == "branch" and step == 2 and rank == 1:
            h = torch.relu(h)
        return self.out(self.mid(h))  # type: ignore[no-any-return]


def main() -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), find_unused_parameters=UNUSED > 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(distributed.get_rank())
    for step in range(4):
        loss = model(torch.randn(4, 8, generator=data), step).square().mean()
        if os.environ.get("LOG"):
            logged = loss.detach().clone()
            distributed.all_reduce(logged)
        optimizer.zero_grad()
        loss.backward()
        # A sum of what the ranks measured, which nothing depends on.
        elapsed = torch.tensor([time.perf_counter()])
        distributed.all_reduce(elapsed)
        largest = loss.detach().clone()
        reduction = distributed.ReduceOp.MIN if TWIST == "minimum" else distributed.ReduceOp.MAX
        distributed.all_reduce(largest, op=reduction)
        loss.detach().add(largest).sum()
        elapsed.div_(2).item()
        optimizer.step()
        if TWIST == "drift" and step == 1 and distributed.get_rank() == 1:
            with torch.no_grad():
                model.module.mid.weight[3, 5] += 1e-3
    distributed.destroy_process_group()
    time.sleep(0.5)  # Else threads of gloo may abort the exiting process.


if __name__ == "__main__":
    main()
