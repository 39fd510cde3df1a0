"""Data-parallel training for so many steps that it can be killed at any moment.

    RANK=r long_training.py FOLDER STEPS

The ranks meet in FOLDER. Each writes to FOLDER/rank<r>.txt how many steps it has finished.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    folder, steps = sys.argv[1], int(sys.argv[2])
    file = os.open(f"{folder}/rank{rank}.txt", os.O_WRONLY | os.O_CREAT)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        os.pwrite(file, f"{step + 1:8}".encode(), 0)
    dist.barrier()


if __name__ == "__main__":
    main()
