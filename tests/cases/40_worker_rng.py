"""CASE_RUN=A: DataLoader with num_workers=1; CASE_RUN=B: num_workers=2 ("only to load faster").

Symptom : same seed, same sample order, yet the random augmentation changes with the number of workers.
First divergence : step 1, phase data, rank 0: the batch. Step 0 is equal in both: worker 0 is seeded alike and makes batch 0.
                   Batch 1 is worker 0's second draw in A and worker 1's first in B. Weights, optimizer and the main
                   process's generators at the begin of step 1 are equal.
Class   : data (worker seeding: each worker is seeded with base_seed + worker_id). Not the RNG of the training process.
Sources : pytorch#15170, pytorch#7209, torchtune#168, Megatron-Energon#23.
"""
import hashlib, os, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self):
        self.x = torch.arange(256.0).reshape(32, 8).sin()

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(8)          # augmentation, in the worker

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    loader = DataLoader(Noisy(), batch_size=8, num_workers=2 if case == "B" else 1)
    for i, x in enumerate(loader):
        on_step(i)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
