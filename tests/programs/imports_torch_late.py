"""Enters `fpdiff.record` before it imports torch, as a script does whose imports are in a function.

Under `fpdiff record` the block only warns; the command's own recording goes on.
"""

import sys

import fpdiff


def train() -> None:
    import torch

    net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()


if __name__ == "__main__":
    with fpdiff.record(sys.argv[1]):
        train()
