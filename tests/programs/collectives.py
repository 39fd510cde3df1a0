"""Does one collective a step among three ranks; arguments are `name` or `name@rank`.

With TWIST set, the part of that rank in that collective is another. With RENAME set, the group of
ranks 1 and 2 has another name. With WITHIN set, the collective is called in a module.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import fpdiff

Collective = Callable[[Tensor], "list[Tensor]"]
"""Given this rank's part, does a collective and returns what the rank got."""

COLLECTIVES: dict[str, Collective] = {}


def collective(function: Collective) -> Collective:
    COLLECTIVES[function.__name__] = function
    return function


class Reader(nn.Module):
    """Reads what a rank got, which is no argument of its: that would be a batch."""

    def forward(self) -> Tensor:
        return torch.stack([tensor.mul(2).sum() for tensor in self.got]).sum()

    def read(self, got: list[Tensor]) -> None:
        self.got = [torch.ones(1), *got]
        self()


class Calling(nn.Module):
    """Does a collective, and returns what came of it."""

    def forward(self, collective: Collective, x: Tensor) -> Tensor:
        self.got = collective(x)
        return torch.stack([torch.ones(()), *(tensor.sum() for tensor in self.got)]).sum()


def rank() -> int:
    return distributed.get_rank()


def world() -> Any:
    group = distributed.group.WORLD
    assert group is not None
    return group.group_name


def like(x: Tensor, count: int) -> list[Tensor]:
    return [torch.empty_like(x) for _ in range(count)]


@collective
def send(x: Tensor) -> list[Tensor]:
    if rank() == 0:
        distributed.send(x, 1)
    elif rank() == 1:
        out = torch.empty_like(x)
        distributed.recv(out, 0)
        return [out]
    return []


@collective
def isend(x: Tensor) -> list[Tensor]:
    works, got = [], []
    if rank() == 2:
        works = [distributed.isend(x, 1), distributed.isend(x.mul(2), 1)]
    elif rank() == 1:
        got = like(x, 2)
        works = [distributed.irecv(out, 2) for out in got]
    for work in works:
        assert work is not None
        work.wait()
    return got[::-1]


@collective
def tags_in_another_order(x: Tensor) -> list[Tensor]:
    got: list[Tensor] = []
    if rank() == 0:
        works = [distributed.isend(torch.ones_like(x), 1, tag=3), distributed.isend(x, 1, tag=4)]
    elif rank() == 1:
        got = like(x, 2)
        works = [distributed.irecv(out, 0, tag=tag) for out, tag in zip(got, (4, 3), strict=True)]
    else:
        return []
    for work in works:
        assert work is not None
        work.wait()
    return got


@collective
def recv_from_anybody(x: Tensor) -> list[Tensor]:
    if rank() == 0:
        distributed.send(x, 1)
    elif rank() == 1:
        out = torch.empty_like(x)
        assert distributed.recv(out) == 0
        return [out]
    return []


@collective
def answer_to_anybody(x: Tensor) -> list[Tensor]:
    """Who sent the first message is asked for the second."""
    if rank() == 0:
        distributed.send(torch.ones_like(x), 1)
        distributed.send(x, 1)
    elif rank() == 1:
        first, second = like(x, 2)
        distributed.recv(second, distributed.recv(first))
        return [first, second]
    return []


@collective
def send_within_a_module(x: Tensor) -> list[Tensor]:
    """The two ends are in different places of the program, as in a pipeline."""
    if rank() == 0:
        Sending(x)()
    elif rank() == 1:
        out = torch.empty_like(x)
        distributed.recv(out, 0)
        return [out]
    return []


@collective
def stage(x: Tensor) -> list[Tensor]:
    """What is received is a batch."""
    if rank() == 0:
        distributed.send(x, 1)
    elif rank() == 1:
        out = torch.empty_like(x)
        distributed.recv(out, 0)
        nn.Identity()(out)
        return [out]
    return []


@collective
def pipeline(x: Tensor) -> list[Tensor]:
    """Of the same message the sender counts another microbatch than the receiver."""
    got = []
    for part in (torch.ones_like(x), x):
        if rank() == 0:
            nn.Identity()(torch.ones(1))
            distributed.send(part, 1)
        elif rank() == 1:
            got.append(torch.empty_like(x))
            distributed.recv(got[-1], 0)
            nn.Identity()(torch.ones(1))
    return got


@collective
def send_between_steps(x: Tensor) -> list[Tensor]:
    return send(x)


@collective
def recv_from_anybody_between_steps(x: Tensor) -> list[Tensor]:
    return recv_from_anybody(x)


@collective
def all_reduce_between_steps(x: Tensor) -> list[Tensor]:
    return all_reduce(x)


@collective
def all_reduce_in_different_places(x: Tensor) -> list[Tensor]:
    """One rank is in a module, another has run modules more often than the third."""
    if rank() == 0:
        Reducing(x)()
    else:
        if rank() == 1:
            nn.Identity()(torch.ones(1))
        distributed.all_reduce(x)
    return [x]


class Reducing(nn.Module):
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def forward(self) -> None:
        distributed.all_reduce(self.x)


class Sending(nn.Module):
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def forward(self) -> None:
        distributed.send(self.x, 1)


@collective
def batch_isend_irecv(x: Tensor) -> list[Tensor]:
    out = torch.empty_like(x)
    operations = [
        distributed.P2POp(distributed.isend, x, (rank() + 1) % 3),
        distributed.P2POp(distributed.irecv, out, (rank() - 1) % 3),
    ]
    for work in distributed.batch_isend_irecv(operations):
        work.wait()
    return [out]


@collective
def broadcast(x: Tensor) -> list[Tensor]:
    distributed.broadcast(x, 1)
    return [x]


@collective
def reduce(x: Tensor) -> list[Tensor]:
    distributed.reduce(x, 1)
    return [x] if rank() == 1 else []


@collective
def reduce_read_by_all(x: Tensor) -> list[Tensor]:
    """Whoever is not the root may be left with a part of the sum."""
    distributed.reduce(x, 1)
    return [x]


@collective
def all_gather(x: Tensor) -> list[Tensor]:
    got = like(x, 3)
    distributed.all_gather(got, x)
    return got


@collective
def all_gather_coalesced(x: Tensor) -> list[Tensor]:
    got = [like(x, 2) for _ in range(3)]
    distributed.all_gather_coalesced(got, [x, x.mul(2)])
    return [tensor for tensors in got for tensor in tensors]


@collective
def all_gather_into_tensor(x: Tensor) -> list[Tensor]:
    out = x.new_empty(3 * len(x))
    distributed.all_gather_into_tensor(out, x)
    return [out]


@collective
def reduce_scatter(x: Tensor) -> list[Tensor]:
    out = x.new_empty(len(x) // 3)
    distributed.reduce_scatter(out, list(x.chunk(3)))
    return [out]


@collective
def reduce_scatter_tensor(x: Tensor) -> list[Tensor]:
    out = x.new_empty(len(x) // 3)
    distributed.reduce_scatter_tensor(out, x)
    return [out]


@collective
def gather(x: Tensor) -> list[Tensor]:
    got = like(x, 3) if rank() == 1 else None
    distributed.gather(x, got, dst=1)
    return got or []


@collective
def scatter(x: Tensor) -> list[Tensor]:
    out = x.new_empty(len(x) // 3)
    distributed.scatter(out, list(x.chunk(3)) if rank() == 1 else None, src=1)
    return [out]


@collective
def all_to_all(x: Tensor) -> list[Tensor]:
    got = like(x[:2], 3)
    distributed.all_to_all(got, list(x.chunk(3)))
    return got


@collective
def all_to_all_single(x: Tensor) -> list[Tensor]:
    out = torch.empty_like(x)
    distributed.all_to_all_single(out, x)
    return [out]


@collective
def all_to_all_uneven(x: Tensor) -> list[Tensor]:
    splits = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    out = torch.empty_like(x)
    distributed.all_to_all_single(out, x, [row[rank()] for row in splits], splits[rank()])
    return [out]


@collective
def all_reduce(x: Tensor) -> list[Tensor]:
    distributed.all_reduce(x)
    return [x]


@collective
def all_reduce_waited_for_later(x: Tensor) -> list[Tensor]:
    work = distributed.all_reduce(x, async_op=True)
    assert work is not None
    other = torch.ones(3).mul(2)
    work.wait()
    return [x, other]


UNREAD: list[Tensor] = []


@collective
def all_reduce_never_waited_for(x: Tensor) -> list[Tensor]:
    UNREAD.append(x)  # It has to outlive the collective.
    distributed.all_reduce(x, async_op=True)
    return []


@collective
def overwritten(x: Tensor) -> list[Tensor]:
    distributed.all_reduce(x)
    x.copy_(torch.ones_like(x).mul(3))
    return [x]


@collective
def all_gather_twice(x: Tensor) -> list[Tensor]:
    """The first output is overwritten by the second before anything reads it."""
    out = x.new_empty(3 * len(x))
    distributed.all_gather_into_tensor(out, torch.ones_like(x))
    distributed.all_gather_into_tensor(out, x)
    return [out]


@collective
def all_reduce_coalesced(x: Tensor) -> list[Tensor]:
    y = x.mul(2)
    distributed.all_reduce_coalesced([x, y])
    return [x, y]


@collective
def coalesced_all_reduces(x: Tensor) -> list[Tensor]:
    y = x.mul(2)
    with distributed.distributed_c10d._coalescing_manager():
        distributed.all_reduce(x)
        distributed.all_reduce(y)
    return [x, y]


@collective
def coalesced_all_gathers(x: Tensor) -> list[Tensor]:
    got = [x.new_empty(3 * len(x)) for _ in range(2)]
    with distributed.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        distributed.all_gather_into_tensor(got[0], x)
        distributed.all_gather_into_tensor(got[1], torch.ones_like(x))
    manager.wait()
    return got


@collective
def coalesced_reduce_scatters(x: Tensor) -> list[Tensor]:
    got = [x.new_empty(len(x) // 3) for _ in range(2)]
    with distributed.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        distributed.reduce_scatter_tensor(got[0], x)
        distributed.reduce_scatter_tensor(got[1], torch.ones_like(x))
    manager.wait()
    return got


PAIR: list[Any] = []
"""The group of ranks 1 and 2."""


@collective
def sub_group(x: Tensor) -> list[Tensor]:
    if rank():
        distributed.broadcast(x, 2, group=PAIR[0])
    return [x] if rank() else []


@collective
def sub_group_gather(x: Tensor) -> list[Tensor]:
    got = like(x, 2) if rank() == 2 else None
    if rank():
        distributed.gather(x, got, dst=2, group=PAIR[0])
    return got or []


@collective
def sub_group_send(x: Tensor) -> list[Tensor]:
    got = like(x, 1) if rank() == 1 else []
    if rank() == 2:
        distributed.send(x, 1, group=PAIR[0])
    for out in got:
        distributed.recv(out, 2, group=PAIR[0])
    return got


@collective
def functional_sub_group(x: Tensor) -> list[Tensor]:
    return [functional.all_reduce(x, "sum", PAIR[0])] if rank() else []


@collective
def functional_all_reduce(x: Tensor) -> list[Tensor]:
    return [functional.all_reduce(x, "sum", world())]


@collective
def functional_all_gather_tensor(x: Tensor) -> list[Tensor]:
    return [functional.all_gather_tensor(x, 0, world())]


@collective
def functional_reduce_scatter_tensor(x: Tensor) -> list[Tensor]:
    return [functional.reduce_scatter_tensor(x, "sum", 0, world())]


@collective
def functional_all_to_all_single(x: Tensor) -> list[Tensor]:
    return [functional.all_to_all_single(x, None, None, world())]


@collective
def functional_broadcast(x: Tensor) -> list[Tensor]:
    return [functional.broadcast(x, 1, world())]


@collective
def functional_all_reduce_coalesced(x: Tensor) -> list[Tensor]:
    return functional.all_reduce_coalesced([x, x.mul(2)], "sum", world())


@collective
def functional_broadcast_in_place(x: Tensor) -> list[Tensor]:
    ops = torch.ops._c10d_functional
    return [ops.wait_tensor(ops.broadcast_(x, 1, world()))]


@collective
def functional_all_reduce_in_place(x: Tensor) -> list[Tensor]:
    ops = torch.ops._c10d_functional
    return [ops.wait_tensor(ops.all_reduce_(x, "sum", world()))]


@collective
def functional_all_reduce_coalesced_in_place(x: Tensor) -> list[Tensor]:
    ops = torch.ops._c10d_functional
    done = ops.all_reduce_coalesced_([x, x.mul(2)], "sum", world())
    return [ops.wait_tensor(one) for one in done]


@collective
def functional_isend(x: Tensor) -> list[Tensor]:
    ops = torch.ops._c10d_functional
    if rank() == 0:
        ops.wait_tensor(ops.isend(x, 1, 0, world()))
    elif rank() == 1:
        return [ops.wait_tensor(ops.irecv(torch.empty_like(x), 0, 0, world()))]
    return []


@collective
def functional_batch(x: Tensor) -> list[Tensor]:
    ops = torch.ops._c10d_functional
    peers = [(rank() + 1) % 3, (rank() - 1) % 3]
    tensors = [x, torch.empty_like(x)]
    done = ops.batch_p2p_ops(["isend", "irecv"], peers, [0, 0], tensors, world())
    return [[ops.wait_tensor(one) for one in done][1]]


@collective
def redistribute(x: Tensor) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (3,))
    sharded: Any = DTensor.from_local(x, mesh, [Shard(0)])
    whole = sharded.redistribute(mesh, [Replicate()])
    again = whole.mul(2).redistribute(mesh, [Shard(0)])
    return [whole.to_local(), again.to_local()]


@collective
def objects(x: Tensor) -> list[Tensor]:
    one: list[Any] = [float(x.sum()) if rank() == 1 else None]
    distributed.broadcast_object_list(one, src=1)
    every: list[Any] = [None] * 3
    distributed.all_gather_object(every, one[0] * rank())
    distributed.barrier()
    distributed.scatter_object_list(one, every if rank() == 2 else None, src=2)
    gathered: list[Any] = [None] * 3
    distributed.gather_object(one[0], gathered if rank() == 0 else None)
    return [torch.tensor(every), torch.tensor([number or 0.0 for number in gathered])]


def main() -> None:
    distributed.init_process_group("gloo")
    if os.environ.get("RENAME"):
        distributed.new_group()  # Names are numbers.
    PAIR.append(distributed.new_group([1, 2]))
    model, calling = Reader(), Calling()
    twisted = bool(os.environ.get("TWIST"))
    for step, argument in enumerate(sys.argv[1:], 1):
        name, _, where = argument.partition("@")
        fpdiff.step(step)
        if "between" not in name:
            model.read([])
        part = torch.arange(6.0).add(10 * rank() + step)
        part.add_(1.0 if twisted and where == str(rank()) else 0.0)
        if os.environ.get("WITHIN"):
            calling(COLLECTIVES[name], part)
            got = calling.got
        else:
            got = COLLECTIVES[name](part)
            model.read(got)
        print(f"got {name} on {rank()}: {[tensor.tolist() for tensor in got]}")
    distributed.barrier()
    distributed.destroy_process_group()
    time.sleep(0.5)  # Else threads of gloo may abort the exiting process.


if __name__ == "__main__":
    main()
