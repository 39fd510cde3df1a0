"""Trains on two ranks; in the first attempt rank 1 fails, or hangs, in step 3.

    restarted.py HOW FOLDER

The ranks of each attempt meet in a file of its own: the launcher's store still has the addresses of
the attempt before.
"""

import os
import sys
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    how, folder = sys.argv[1:]
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous{attempt}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        if distributed.get_rank() == 1 and step == 3 and attempt == "0":
            if how == "fails":
                raise RuntimeError("lost a node")
            time.sleep(1)  # Rank 0 may be a little behind.
            print("hanging", flush=True)
            time.sleep(600)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    distributed.destroy_process_group()
    time.sleep(0.5)  # Else threads of gloo may abort the exiting process.


if __name__ == "__main__":
    main()
