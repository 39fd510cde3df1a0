"""What the programs here share: a case is a function that trains and returns tensors.

A program's arguments are the names of its cases, none for all. Each is run on its own seed, and a
line is printed of it: a checksum of what it returned, and one of the state that it left torch's
generator in.
"""

import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 3


def batch(rows: int = 6, columns: int = 4) -> Tensor:
    return torch.randn(rows, columns)


def square(
    net: Callable[[Tensor], Tensor], data: Callable[[], Tensor] = batch
) -> Callable[[], Tensor]:
    """Return a loss of a net on new data."""
    return lambda: net(data()).square().mean()


def fit(
    module: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    steps: int = STEPS,
) -> list[Tensor]:
    """Train in the usual way; return the losses and the parameters."""
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return [*losses, *module.parameters()]


def checksum(tensors: Iterable[Tensor]) -> str:
    found = hashlib.sha1()
    for tensor in tensors:
        plain = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + plain.tobytes())
    return found.hexdigest()


def run_cases(program: Mapping[str, Any], *, strict: bool = True) -> None:
    """Run the functions case_* of a program; if it is strict, any warning is an error."""
    if strict:
        warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*torch.jit.script.*is deprecated")  # Torch's own use of it.
    wanted = sys.argv[1:]
    for name, case in list(program.items()):
        if not name.startswith("case_") or wanted and name.removeprefix("case_") not in wanted:
            continue
        torch.manual_seed(len(name))
        try:
            found = checksum(list(case()))
        except Exception as error:  # noqa: BLE001  # The other cases shall run all the same.
            found = f"failed with {type(error).__name__}: {error}".splitlines()[0]
        generator = checksum([torch.get_rng_state()])
        print(f"{name.removeprefix('case_')}: {found} {generator}", flush=True)
