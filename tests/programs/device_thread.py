"""Trains on a device whose kernels are Python functions: autograd runs its nodes in another thread.

Prints the number of threads that were at work.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

AT_WORK = set[int]()
OPS = ("pow.Tensor_Scalar", "mul.Scalar", "mul.Tensor", "add.Tensor", "detach")


class OnDevice(torch.Tensor):
    """A tensor of the device; its elements lie on the host."""

    @staticmethod
    def __new__(cls, elements: Tensor) -> Any:
        made = torch._C._acc.create_empty_tensor(elements.shape, elements.dtype)
        made.__class__ = cls
        return made

    def __init__(self, elements: Tensor) -> None:
        self.elements = elements


def kernel(op: Any) -> Callable[..., OnDevice]:
    def run(*args: Any) -> OnDevice:
        AT_WORK.add(threading.get_ident())
        return OnDevice(op(*(getattr(arg, "elements", arg) for arg in args)))

    return run


class Move(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return OnDevice(x.detach())

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient.elements


class Return(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.elements.detach()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return OnDevice(gradient)


class Recomputed(torch.autograd.Function):
    """Runs a module again in the backward, in that thread, and differentiates it there."""

    @staticmethod
    def forward(context: Any, x: Any, module: nn.Module) -> Tensor:
        context.module, context.x = module, x.elements.detach()
        return OnDevice(module(context.x))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        AT_WORK.add(threading.get_ident())
        with torch.enable_grad():
            x = context.x.requires_grad_()
            torch.autograd.backward(context.module(x), gradient.elements)
        return OnDevice(x.grad), None


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3  # -> pow


class Waved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        return x.sin()  # -> cos


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.cubed, self.waved = nn.Linear(3, 3), Cubed(), Waved()

    def forward(self, x: Tensor) -> Any:
        x = self.linear(x)  # -> mm
        x = self.cubed(Move.apply(x))  # type: ignore[no-untyped-call]
        x = Recomputed.apply(x, self.waved)  # type: ignore[no-untyped-call]
        return Return.apply(x)  # type: ignore[no-untyped-call]


def main() -> None:
    _setup_privateuseone_for_python_backend("fake")
    library = torch.library.Library("aten", "IMPL")
    for name in OPS:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(op, kernel(op), "PrivateUse1")
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    print(len(AT_WORK), "threads")


if __name__ == "__main__":
    main()
