"""Trains 8 steps, or resumes from step 4: `resume.py CHECKPOINT [WHAT_IS_LOST]`.

The checkpoint is written if it does not exist; else the program resumes from it, and forgets what
the second argument names.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NUM_STEPS, RESUMED_AT = 8, 4


class Net(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.out(self.drop(self.inp(x).tanh())) / self.calls.sqrt()  # type: ignore[no-any-return]


class Training:
    """All that a checkpoint must hold."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        self.data = torch.Generator().manual_seed(1)

    def step(self) -> None:
        x = torch.randn(8, 16, generator=self.data)
        loss = (self.net(x).squeeze(-1) - x.sum(-1)).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()

    def save(self, path: Path) -> None:
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        states = {"torch": torch.get_rng_state(), "data": self.data.get_state()}
        torch.save({**parts, **states, "calls": self.net.calls}, path)

    def load(self, path: Path, lost: str) -> None:
        saved: dict[str, Any] = torch.load(path)
        if lost == "precision":
            saved["net"] = {name: w.bfloat16().float() for name, w in saved["net"].items()}
        for name in _PARTS:
            if name != lost:
                getattr(self, name).load_state_dict(saved[name])
        if lost == "optimizer":  # Its learning rate is there: it comes from the configuration.
            self.optimizer.param_groups[0]["lr"] = saved["optimizer"]["param_groups"][0]["lr"]
        if lost == "schedule":
            self.scheduler.step()
        if lost != "rng":
            torch.set_rng_state(saved["torch"])
        if lost != "data":
            self.data.set_state(saved["data"])
        if lost != "buffer":
            self.net.calls.copy_(saved["calls"])


_PARTS = ("net", "optimizer", "scheduler", "scaler")


def main() -> None:
    checkpoint, lost = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    training = Training()
    first = 0
    if checkpoint.exists():
        training.load(checkpoint, lost)
        first = RESUMED_AT
    for step in range(first, NUM_STEPS):
        if step == RESUMED_AT and not first:
            training.save(checkpoint)
        training.step()


if __name__ == "__main__":
    main()
