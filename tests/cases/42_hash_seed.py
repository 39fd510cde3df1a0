"""Run with PYTHONHASHSEED=1 as A and PYTHONHASHSEED=2 as B (CASE_RUN is ignored; unset, every run is another).

Symptom : everything is seeded, and each new process trains to another accuracy; within a process it repeats.
First divergence : step 0, rank 0: the labels, which only the loss gets: target of aten.nll_loss_forward, outside any
                   module. Classes are numbered in the order of a set of strings. Batch, parameters, generators and all
                   module outputs of step 0 are equal.
Class   : data (labels). Ideal: beside it, that PYTHONHASHSEED differs.
Trap    : at the rung layer nobody sees labels that go straight into a loss: there the loss itself is the first to differ.
Sources : pygcn#41, allennlp#243, py-irt#44, bicleaner#72, TLOmodel#742.
"""
import hashlib, os, torch
from torch import nn

NAMES = ["theory", "neural", "genetic", "rules", "cases", "rl", "prob"]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16), nn.Linear(16, len(NAMES))

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    number = {name: i for i, name in enumerate(set(NAMES))}          # the bug: sorted(...) is missing
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(14, 8, generator=g)
        y = torch.tensor([number[NAMES[(i + j) % len(NAMES)]] for j in range(14)])
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
