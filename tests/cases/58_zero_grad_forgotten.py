"""CASE_RUN=A: zero_grad in every step; CASE_RUN=B: once, before the loop ("per epoch").

Symptom : the first step is right, then the updates grow from step to step as if momentum had been switched on.
First divergence : STRUCTURE at step 1, phase backward, rank 0: the accumulation aten.add_ / aten.add of the new gradient to the
                   old one is in B only, first for `out`, whose backward runs first. Forward and loss of step 1 are
                   equal; the first value to differ is the gradient that the optimizer gets.
Class   : structure (stale gradients are added).
Sources : tt-blacksmith#711, torchforge#71, pytorch#47175, wekws#72.
"""
import hashlib, os, torch
from torch import nn

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
    g = torch.Generator().manual_seed(1)
    opt.zero_grad()
    for i in range(3):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        if case == "A":
            opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
