"""Trains a small net; `perturbed.py HOW`.

recorded   a hook adds one ULP to an output in step 2, but only while fpdiff records
always     every execution draws from another seed
dies       fails while fpdiff records
"""

import os
import sys

import torch
from torch import nn

from fpdiff.fingerprint.record import current


def main() -> None:
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    is_recorded = current.script is not None
    print("perturbed.py begins")
    torch.manual_seed(os.getpid() if how == "always" else 0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        if how == "dies" and is_recorded and step == 1:
            raise RuntimeError("the observer broke it")
        if how == "recorded" and is_recorded and step == 2:

            def nudge(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
                return output + (torch.nextafter(output, output.new_tensor(9.0)) - output).detach()

            model[1].register_forward_hook(nudge)
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        (model(x).squeeze(-1) - x.sum(-1)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
