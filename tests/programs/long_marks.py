"""Trains with very many marks for the profiler, which begin in one step and end in another.

Torch's profiler is to follow the host's operators here, where there may be no device.
"""

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity

from fpdiff.fingerprint.record.ops import devicekernels

MARKS = 3000


def main() -> None:
    devicekernels.to_follow = lambda: {ProfilerActivity.CPU}
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    marks = [record_function(f"mark {index}") for index in range(MARKS)]
    for step in range(4):
        optimizer.zero_grad()
        loss = net(torch.ones(3, 4)).sum()
        for mark in marks:
            if step == 0:
                mark.__enter__()
            if step == 2:
                mark.__exit__(None, None, None)
        loss.backward()
        optimizer.step()
    print("ended")


if __name__ == "__main__":
    main()
