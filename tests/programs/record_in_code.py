"""Records itself three times, once with an exception, and checks that nothing is left behind."""

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizer

import fpdiff


def hooks() -> list[Any]:
    """Return what a recorder could have changed, beside what it set on the model."""
    dictionaries = [
        value
        for where in (torch_modules, torch_optimizer)
        for name, value in vars(where).items()
        if name.startswith("_global_")
    ]
    engine: Any = torch.autograd
    return [*map(repr, dictionaries), engine._engine_run_backward, list(sys.meta_path)]


def on_model(net: nn.Module) -> list[Any]:
    found: list[Any] = [{k: repr(v) for k, v in vars(part).items()} for part in net.modules()]
    for parameter in net.parameters():
        # Torch makes an empty dictionary when a first hook is registered.
        found += [bool(parameter._backward_hooks), bool(parameter._post_accumulate_grad_hooks)]
        found.append(sorted(vars(parameter)))
    return found


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(3):
        fpdiff.step(step)
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        fpdiff.log("loss", loss)
        fpdiff.mark("weight", net.get_parameter("weight"))


def main() -> None:
    warnings.simplefilter("error")
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    train(net, optimizer)
    global_before, model_before = hooks(), on_model(net)
    folder = Path(sys.argv[1])
    for name, failing in (("a", False), ("b", True), ("c", False)):
        with contextlib.suppress(ZeroDivisionError), fpdiff.record(folder / name):
            train(net, optimizer)
            if failing:
                raise ZeroDivisionError
        if hooks() == global_before and str(on_model(net)) == str(model_before):
            print("as before")
    for name in "bc":
        assert fpdiff.compare(folder / "a", folder / name).verdict == "identical"


if __name__ == "__main__":
    main()
