"""Trains a model in whose backward each line with a comment `# -> OPS` has operators of its own."""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Erf(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.erf()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        (x,) = context.saved_tensors
        return gradient * x.cosh()  # => cosh


def squared(gradient: Tensor) -> Tensor:
    return gradient.exp2()  # => exp2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.curved = nn.Sequential(nn.Softplus(), nn.GELU())

    def gated(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x)  # -> silu_backward

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)  # -> mm
        x = self.norm(x)  # -> native_layer_norm_backward
        x = checkpoint(self.curved, x, use_reentrant=False)  # -> gelu_backward
        x = checkpoint(self.gated, x, use_reentrant=True)
        x = Erf.apply(x)  # type: ignore[no-untyped-call]
        x = x.clone()
        x[0].sigmoid_()  # -> sigmoid_backward
        x.register_hook(squared)
        first, *others = x.unbind()  # -> stack
        return first.softmax(0) + sum(others)  # -> _softmax_backward_data


def main() -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(3, 6, requires_grad=True)
            loss = net(x).square().sum()
            angle = net.linear.weight.tanh().sum()  # -> tanh_backward
            (slope,) = torch.autograd.grad(angle, net.linear.weight, create_graph=True)
            (loss + slope.square().sum()).backward()
        optimizer.step()
    print("params", [round(p.sum().item(), 6) for p in net.parameters()], file=sys.stderr)


if __name__ == "__main__":
    main()
