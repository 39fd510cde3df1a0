"""Data-parallel training whose two ranks are started by torch.multiprocessing.spawn."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    parts = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    os.write(1, f"rank {rank} params {hashlib.sha1(parts).hexdigest()}\n".encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(train, args=(sys.argv[1],), nprocs=2)
