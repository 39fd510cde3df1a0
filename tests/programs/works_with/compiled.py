"""Trains what torch compiles, with inductor; each case_* function compiles another part.

Also prints what Dynamo counted. With FAULT=STEP set, the kernel inside the compiled region computes
something else in that step, counted from 0; so does the one beside a compiled optimizer.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch._dynamo
from common import batch, fit, run_cases, square
from torch import Tensor, nn

calls = 0


@torch.library.custom_op("works_with::scale", mutates_args=())
def scale(x: Tensor) -> Tensor:
    """Return twice of x, and something else in the step of the fault."""
    global calls
    factor = 2.001 if os.environ.get("FAULT") == str(calls) else 2.0
    calls += 1
    return x * factor


@scale.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


scale.register_autograd(lambda ctx, gradient: gradient * 2)


class Inner(nn.Module):
    """What is compiled, with a kernel of its own in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(scale(torch.tanh(self.first(x)).exp()))
        return result


class Scale(nn.Module):
    """Has the kernel of the fault alone, to be run eagerly."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = scale(x)
        return result


class Head(nn.Module):
    """Compiled too, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(x.sin())
        return result


class Outer(nn.Module):
    """Has them as parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.inner, self.head = nn.Linear(4, 4), Inner(), Head()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.inner(self.inp(x)))
        return result


def counted(results: Iterable[Tensor]) -> Iterable[Tensor]:
    yield from results
    for name in ("stats", "frames", "graph_break"):
        for key, count in sorted(torch._dynamo.utils.counters[name].items()):
            print(f"counted: {name} {key} {count}")


def case_whole() -> Iterable[Tensor]:
    net, rows = Outer(), iter((3, 5, 7))
    compiled: Callable[[Tensor], Tensor] = torch.compile(net, dynamic=True)
    return counted(fit(net, square(compiled, lambda: batch(next(rows)))))


def case_submodules() -> Iterable[Tensor]:
    net = Outer()
    compiled: Any = torch.compile(net.inner)
    net.inner = compiled
    net.head.compile()
    return counted(fit(net, square(net)))


def case_optimizer() -> Iterable[Tensor]:
    """Train eagerly, with an optimizer whose step is compiled whole: no hook fires in it."""
    net = nn.Sequential(nn.Linear(4, 8), Scale(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01))
    optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]
    return counted(fit(net, square(net), optimizer))


def case_function() -> Iterable[Tensor]:
    net = Outer()
    compiled: Callable[[Tensor], Tensor] = torch.compile(lambda x: net(x), backend="eager")
    return counted(fit(net, square(compiled)))


if __name__ == "__main__":
    run_cases(globals(), strict=False)
