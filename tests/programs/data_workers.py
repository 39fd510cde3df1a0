"""Train on batches from DataLoader workers that run modules themselves, started in three ways."""

import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset[torch.Tensor]):
    """Samples that a module makes in the worker; a recorder has no business there."""

    def __init__(self) -> None:
        self.transform = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            sample: torch.Tensor = self.transform(torch.full((4,), float(index)))
            return sample + torch.rand(4)


def main() -> None:
    torch.manual_seed(0)
    data = Noisy()
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for context in ("fork", "spawn", "forkserver"):
        # Two rounds: when the second begins, this process has long been recorded.
        for _ in range(2 if context == "fork" else 1):
            for batch in DataLoader(
                data, batch_size=4, num_workers=1, multiprocessing_context=context
            ):
                optimizer.zero_grad()
                net(batch).square().mean().backward()
                optimizer.step()
    parts = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    print("params", hashlib.sha1(parts).hexdigest())


if __name__ == "__main__":
    main()
