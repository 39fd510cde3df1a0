"""Train a tiny net for some steps, then end in the way that the options ask for."""

import argparse
import hashlib
import os
import signal
import sys
import time
from types import FrameType

import torch
from torch import nn


class Net(nn.Module):
    """Three layers, the middle one in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.out = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.block(torch.relu(self.inp(x))))
        return result


def end_on_sigterm(number: int, frame: FrameType | None) -> None:
    os.write(1, b"got SIGTERM\n")  # The signal may come while `print` holds the stream.
    sys.exit(7)


def train(steps: int, seed: int, pause: float) -> None:
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(4, 8, generator=generator)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        time.sleep(pause)
    data = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    print("params", hashlib.sha1(data).hexdigest(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0, help="seconds after each step")
    parser.add_argument("--stderr", default="", help="write this there")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--fail", action="store_true", help="raise an exception")
    parser.add_argument("--kill", action="store_true", help="die of SIGKILL")
    parser.add_argument("--wait", action="store_true", help="sleep until a signal comes")
    args = parser.parse_args()
    train(args.steps, args.seed, args.pause)
    print(args.stderr, end="", file=sys.stderr, flush=True)
    if args.fail:
        raise ValueError("a bug of the script")
    if args.kill:
        os.kill(os.getpid(), signal.SIGKILL)
    if args.wait:
        signal.signal(signal.SIGTERM, end_on_sigterm)
        # A shell's job in the background, as these tests may be, ignores it from the start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            print("waiting", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("got SIGINT", flush=True)
            sys.exit(5)
    sys.exit(args.exit)


if __name__ == "__main__":
    main()
