"""CASE_RUN=A: heap blocks are clean; CASE_RUN=B: the program first freed blocks full of ones. The bug itself, a parameter made
with torch.empty that nobody initialises, is in both.

Symptom : most runs are fine, some start with a huge loss or NaN; a fresh machine, another import, and it is gone.
(A itself may vary: nothing guarantees a clean heap.)
First divergence : STATE at begin of step 0, rank 0: parameter `mix.pool`; all other parameters, the generators and the batch are
                   equal. First op with wrong content: step 0, phase forward, aten.mm in module `mix`.
Class   : uninitialised memory. Where that cannot be told: state (parameter mix.pool).
Sources : CLIP#15, AGCRN#12, STALE#16, nanochat#686, bionemo-recipes#983.
"""
import hashlib, os, numpy as np, torch
from torch import nn

class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.Parameter(torch.empty(64, 64))

    def forward(self, x):
        return x @ self.pool

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mix, self.out = nn.Linear(8, 64), Mix(), nn.Linear(64, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.mix(torch.tanh(self.inp(x)))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    dirt = [np.full(4096 + 16, 1.0 if case == "B" else 0.0, "float32") for _ in range(64)]
    del dirt                                             # malloc hands these blocks out again
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(2):
        on_step(i)
        x = torch.randn(12, 8, generator=g)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
