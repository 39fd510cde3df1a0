"""The training step that overheads are measured on: a GPT of 17 million parameters, on the CPU.

    python bench/gpt17.py

It is the model of examples/train_gpt.py with 512 channels, 4 layers, 8 heads, a vocabulary of
8,192 and a batch of 4 x 256 tokens, trained on random tokens, in a single process.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from fpdiff.examples.train_gpt import GPT

VOCABULARY = 8192
BATCH = 4
CONTEXT = 256
THREADS = 2


def build(seed: int) -> GPT:
    """Return the model, initialised from `seed`."""
    torch.manual_seed(seed)
    return GPT(VOCABULARY, context=CONTEXT, d_model=512, layers=4, heads=8)


def make(seed: int) -> Callable[[], None]:
    """Return a function that trains a new model for one step per call."""
    return _trainer(build(seed), seed, VOCABULARY, (BATCH, CONTEXT + 1))


def make_small(seed: int) -> Callable[[], None]:
    """Return the same for a model of half a million parameters and a batch of 4 x 32 tokens."""
    torch.manual_seed(seed)
    model = GPT(512, context=32, d_model=96, layers=4, heads=4)
    return _trainer(model, seed, 512, (4, 33))


def _trainer(model: GPT, seed: int, vocabulary: int, shape: tuple[int, int]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(seed)

    def step() -> None:
        tokens = torch.randint(vocabulary, shape, generator=generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # torch has no annotation there.
        optimizer.step()

    return step


def main() -> None:
    """Print the number of parameters and the time of a step."""
    torch.set_num_threads(THREADS)
    parameters = sum(parameter.numel() for parameter in build(seed=0).parameters())
    step = make(seed=0)
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
