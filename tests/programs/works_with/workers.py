"""Trains on what DataLoader workers made with modules; each case_* starts them in another way."""

from collections.abc import Iterable

import torch
from common import STEPS, run_cases
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset[Tensor]):
    """Samples that a module makes in the worker; a recorder has no business there."""

    def __init__(self) -> None:
        self.transform = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            sample: Tensor = self.transform(torch.full((4,), float(index)))
            return sample + torch.rand(4)


def train(context: str) -> Iterable[Tensor]:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data = Noisy()
    for batch in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=context):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    return net.parameters()


def case_fork() -> Iterable[Tensor]:
    return train("fork")


def case_spawn() -> Iterable[Tensor]:
    return train("spawn")


def case_forkserver() -> Iterable[Tensor]:
    return train("forkserver")


if __name__ == "__main__":
    run_cases(globals())
