"""The training steps that overheads are measured on: GPTs of three sizes, on the CPU.

    python bench/gpt.py [--size 17M]

They are the model of examples/train_gpt.py, trained on random tokens, in a single process.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from fpdiff.examples.train_gpt import GPT

BATCH = 4
THREADS = 2


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model, and the length of the sequences that it is trained on."""

    vocabulary: int
    context: int
    d_model: int
    heads: int
    layers: int = 4


SIZES = {
    "0.5M": Size(vocabulary=512, context=32, d_model=96, heads=4),
    "17M": Size(vocabulary=8192, context=256, d_model=512, heads=8),
    "67M": Size(vocabulary=16384, context=256, d_model=1024, heads=16),
}
"""By the number of parameters. In the smallest, Python is nearly all there is."""


def build(size: Size, seed: int) -> GPT:
    """Return the model, initialised from `seed`."""
    torch.manual_seed(seed)
    return GPT(
        size.vocabulary,
        context=size.context,
        d_model=size.d_model,
        layers=size.layers,
        heads=size.heads,
    )


def trainer(model: GPT, size: Size, seed: int) -> Callable[[], None]:
    """Return a function that trains a model for one step per call."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(seed)

    def step() -> None:
        tokens = torch.randint(size.vocabulary, (BATCH, size.context + 1), generator=generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # torch has no annotation there.
        optimizer.step()

    return step


def main() -> None:
    """Print the number of parameters and the time of a step."""
    parser = argparse.ArgumentParser(description="Time a training step.")
    parser.add_argument("--size", choices=SIZES, default="17M")
    size = SIZES[parser.parse_args().size]
    torch.set_num_threads(THREADS)
    model = build(size, seed=0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    step = trainer(model, size, seed=0)
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    # The first steps allocate the optimizer's state and the allocator's pages.
    rest = seconds[3:]
    print(
        f"{parameters / 1e6:.2f} M parameters, {THREADS} threads: "
        f"{statistics.median(rest):.3f} s a step ({min(rest):.3f} to {max(rest):.3f})"
    )


if __name__ == "__main__":
    main()
