"""Trains a small net, with the changes that the words ask for: `train_changed.py CHANGE ...`.

eval      the model is in eval mode
average   an averaged copy is updated with another decay
seed      the model is initialised from another seed
load      step 1 begins with other weights and another state of the optimizer
frozen    a part of the model is frozen from step 1 on
nudge     one weight is another one from step 1 on
rate      the learning rate is set between the forward and the optimizer's step, in step 1
decay     so are the weight decay of one group and, in place, the betas of the other
schedule  a scheduler moves on there in every step, and the learning rate is a tensor
"""

import copy
import hashlib
import sys

import torch
from torch import nn

STEPS = 3
STEP = 1


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.mlp(self.norm(x))
        return result


class Net(nn.Module):
    """Three blocks between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.norm(self.blocks(self.inp(x))))
        return result


def optimizer_of(net: Net, *, is_tensor: bool) -> torch.optim.Optimizer:
    """Return an optimizer with a group for matrices and one for the rest."""
    groups = [
        {
            "params": [p for p in net.parameters() if (p.dim() > 1) is is_matrix],
            "betas": [0.9, 0.99],
        }
        for is_matrix in (True, False)
    ]
    lr = torch.tensor(0.01) if is_tensor else 0.01
    return torch.optim.AdamW(groups, lr=lr, capturable=False, foreach=False)


class Changes:
    """What happens at some points of the training."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        torch.manual_seed(1 if "seed" in names else 0)
        self.net = Net()
        self.ema = copy.deepcopy(self.net)
        self.optimizer = optimizer_of(self.net, is_tensor="schedule" in names)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.net.train("eval" not in names)

    @torch.no_grad()
    def before_forward(self) -> None:
        if "load" in self.names:
            for parameter, held in self.optimizer.state.items():
                for tensor in (parameter, held["exp_avg"], held["exp_avg_sq"]):
                    tensor *= 1.5
        if "frozen" in self.names:
            self.net.blocks[1].mlp.requires_grad_(False)
        if "nudge" in self.names:
            self.net.get_parameter("blocks.1.mlp.0.weight")[3, 2] += 0.5

    def after_forward(self) -> None:
        groups = self.optimizer.param_groups
        if "rate" in self.names:
            for group in groups:
                group["lr"] *= 0.5
        if "decay" in self.names:
            groups[0]["weight_decay"] = 0.5
            groups[1]["betas"][0] = 0.5

    @torch.no_grad()
    def average(self) -> None:
        weight = 0.2 if "average" in self.names else 0.1
        for mine, theirs in zip(self.ema.parameters(), self.net.parameters(), strict=True):
            mine.lerp_(theirs, weight)


def train(changes: Changes) -> None:
    torch.manual_seed(2)
    for step in range(STEPS):
        if step == STEP:
            changes.before_forward()
        x = torch.randn(6, 4)
        loss = (changes.net(x)[:, 0] - x.sum(1)).square().mean()
        changes.optimizer.zero_grad()
        loss.backward()
        if step == STEP:
            changes.after_forward()
        if "schedule" in changes.names:
            changes.scheduler.step()
        changes.optimizer.step()
        changes.average()
    modules = (changes.net, changes.ema)
    data = b"".join(p.detach().numpy().tobytes() for m in modules for p in m.parameters())
    print("params", hashlib.sha1(data).hexdigest())


if __name__ == "__main__":
    train(Changes(sys.argv[1:]))
