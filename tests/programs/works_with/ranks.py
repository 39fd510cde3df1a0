"""Trains on two ranks; each case_* function is a way of sharing the work, see common.py."""

from collections.abc import Iterable
from typing import Any

import torch
from common import STEPS, batch, fit, run_cases
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return result


def blocks(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(count)))


def own_batch() -> Tensor:
    """Return a batch that no other rank has."""
    return batch(RANKS * 4, 8)[distributed.get_rank() :: RANKS]


def train(model: nn.Module, data: Any = own_batch) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return [
        tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for tensor in fit(model, lambda: model(data()).square().mean(), optimizer)
    ]


def case_ddp() -> Iterable[Tensor]:
    return train(DistributedDataParallel(blocks()))


def sharded(**options: Any) -> nn.Module:
    model = blocks()
    for block in model:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def case_fsdp2() -> Iterable[Tensor]:
    return train(sharded())


def case_fsdp2_no_reshard() -> Iterable[Tensor]:
    return train(sharded(reshard_after_forward=False))


def case_fsdp2_mixed_precision() -> Iterable[Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(sharded(mp_policy=policy))


def case_tensor_parallel() -> Iterable[Tensor]:
    model = blocks()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model:
        parallelize_module(block, init_device_mesh("cpu", (RANKS,)), plan)
    return train(model, lambda: batch(24, 8).view(4, RANKS, 3, 8)[:, distributed.get_rank()])


def pipelined(schedule_class: Any, stages_per_rank: int) -> Iterable[Tensor]:
    """Train a model whose stages are dealt to the ranks in turn."""
    rank, count = distributed.get_rank(), RANKS * stages_per_rank
    parts = nn.ModuleList([blocks(1) for _ in range(count)])
    own = range(rank, count, RANKS)
    stages = [PipelineStage(parts[i], i, count, torch.device("cpu")) for i in own]

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()

    which = stages if stages_per_rank > 1 else stages[0]
    schedule = schedule_class(which, n_microbatches=4, loss_fn=loss_of)
    mine = nn.ModuleList([parts[i] for i in own])
    optimizer = torch.optim.AdamW(mine.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, target, losses = batch(8, 8), batch(8, 8), list[Tensor]()
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        optimizer.step()
        yield from losses
    yield from mine.parameters()


def case_pipeline_1f1b() -> Iterable[Tensor]:
    return pipelined(Schedule1F1B, 1)


def case_pipeline_interleaved() -> Iterable[Tensor]:
    return pipelined(ScheduleInterleaved1F1B, 2)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    run_cases(globals(), strict=False)
    distributed.barrier()
