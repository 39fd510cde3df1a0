"""Train a small net, one module of which launches Triton kernels.

They run in Triton's interpreter, or on the device with `--device cuda`. The kernel of the step that
`--wrong` gives has the name and the arguments of the others.
"""

import argparse
import hashlib
import os
import sys
from typing import Any

import torch
from torch import nn

if "cuda" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def scale(x_ptr, out_ptr, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(out_ptr + at, x * factor, mask=at < count)


def wrong() -> Any:
    """Return a kernel of the same name that is wrong in the last bits of one element."""

    @triton.jit  # type: ignore[untyped-decorator]
    def scale(x_ptr, out_ptr, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < count)
        tl.store(out_ptr + at, tl.where(at == 3, x * factor * 1.000001, x * factor), at < count)

    return scale


class Scale(nn.Module):
    """Multiplies by a half twice, once in place."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = [scale, scale]
        self.block = 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x, self)  # type: ignore[no-any-return,no-untyped-call]


class Scaled(torch.autograd.Function):
    """What Scale computes, with its gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, module: Scale) -> torch.Tensor:
        context.module = module
        out = torch.empty_like(x)
        launch(module.kernels[0], x, out, module.block)
        launch(module.kernels[1], out, out, module.block)
        return out

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        out = torch.empty_like(gradients[0])
        launch(scale, gradients[0].contiguous(), out, context.module.block)
        return out.mul_(0.5), None


def launch(kernel: Any, x: torch.Tensor, out: torch.Tensor, block: int) -> None:
    kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), 0.5, BLOCK=block)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--wrong", type=int, default=-1, help="step whose second launch is wrong")
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), Scale(), nn.Linear(6, 1))
    assert isinstance(net[1], Scale)
    net[1].block = args.block
    net.to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        net[1].kernels[1] = wrong() if step == args.wrong else scale
        batch = torch.randn(5, 8, generator=batches).to(args.device)
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    data = b"".join(p.detach().cpu().numpy().tobytes() for p in net.parameters())
    print("params", hashlib.sha1(data).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
