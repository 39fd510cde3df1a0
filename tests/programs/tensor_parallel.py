"""Trains a tensor-parallel model on two ranks and prints a checksum of each rank's parameters.

With FAULT set, rank 1's activation of the second block adds 1 to an element in step 1. With COMPILE
set, the blocks are compiled; the graphs and breaks are counted.
"""

import hashlib
import os

import torch
import torch._dynamo
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


class Faulty(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = nn.functional.gelu(x)
        if self.calls == 2 and distributed.get_rank() == 1:
            y.data.view(-1)[0] += 1
        return y


def main() -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    blocks = nn.Sequential(Block(), Block(), Block())
    if os.environ.get("FAULT"):
        blocks[1].act = Faulty()
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if os.environ.get("COMPILE"):
        for block in blocks:
            block.compile(backend="aot_eager")
    model = nn.Sequential(blocks, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    content = b"".join(p.detach().numpy().tobytes() for p in local)
    print(f"rank {distributed.get_rank()} params {hashlib.sha1(content).hexdigest()}")
    if os.environ.get("COMPILE"):
        counters = torch._dynamo.utils.counters
        print(f"graphs {counters['stats']['unique_graphs']} breaks {dict(counters['graph_break'])}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
