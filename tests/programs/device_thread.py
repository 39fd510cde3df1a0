"""Trains on a device whose kernels are Python functions: autograd runs its nodes in another thread.

Prints the number of threads that were at work.
"""

import threading

import torch
from torch import nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

AT_WORK = set()
OPS = ("pow.Tensor_Scalar", "mul.Scalar", "mul.Tensor", "add.Tensor", "detach")


class OnDevice(torch.Tensor):
    """A tensor of the device; its elements lie on the host."""

    @staticmethod
    def __new__(cls, elements):
        made = torch._C._acc.create_empty_tensor(elements.shape, elements.dtype)
        made.__class__ = cls
        return made

    def __init__(self, elements):
        self.elements = elements


def kernel(op):
    def run(*args):
        AT_WORK.add(threading.get_ident())
        return OnDevice(op(*(getattr(arg, "elements", arg) for arg in args)))

    return run


class Move(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return OnDevice(x.detach())

    @staticmethod
    def backward(context, gradient):
        return gradient.elements


class Return(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.elements.detach()

    @staticmethod
    def backward(context, gradient):
        return OnDevice(gradient)


class Recomputed(torch.autograd.Function):
    """Runs a module again in the backward, in that thread, and differentiates it there."""

    @staticmethod
    def forward(context, x, module):
        context.module, context.x = module, x.elements.detach()
        return OnDevice(module(context.x))

    @staticmethod
    def backward(context, gradient):
        AT_WORK.add(threading.get_ident())
        with torch.enable_grad():
            x = context.x.requires_grad_()
            torch.autograd.backward(context.module(x), gradient.elements)
        return OnDevice(x.grad), None


class Cubed(nn.Module):
    def forward(self, x):
        return x**3  # -> pow


class Waved(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        x = x * self.scale
        return x.sin()  # -> cos


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.cubed, self.waved = nn.Linear(3, 3), Cubed(), Waved()

    def forward(self, x):
        x = self.linear(x)  # -> mm
        x = self.cubed(Move.apply(x))
        return Return.apply(Recomputed.apply(x, self.waved))


def main():
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
