"""CONTROL. CASE_RUN=A: DataLoader with num_workers=0; CASE_RUN=B: num_workers=2. Samples are not random.

Symptom : none: the loader draws its base seed from the global generator with and without workers, in order that the number
          of workers be no part of the seed; shuffling and dropout agree.
First divergence : none.
Class   : no divergence (a control against false alarms: batches arrive from other processes, in shared memory).
Trap    : 40 is the same but for a random sample. Worker threads, pickled tensors and other storages must not matter.
Sources : pytorch#12935, pytorch#7265, lhotse#462.
"""
import hashlib, os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    data = TensorDataset(torch.randn(32, 8, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2 if case == "B" else 0)
    for i, (x,) in enumerate(loader):
        on_step(i)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
