"""CASE_RUN=A / B: before step 2 B logs the norm of a spectrally normalised weight.

Symptom : a line of logging changes the training. In training mode each look at `weight` is a step of the power method.
First divergence : step 2, rank 0, phase forward: one more call of module `inp.parametrizations.weight.0` in B (aten.mv and what
                   follows); the norm itself is read by nothing. Its vectors, then the loss of step 2, follow from that.
Class   : structure.
Trap    : the parametrization is called at the top level already while the net is built, before the net itself ever is: it is
          not the root. And its second call in B is the first one in A.
Sources : pytorch#48181, pytorch#59564, pytorch#7298.
"""
import hashlib, os, torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = spectral_norm(nn.Linear(8, 16)), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(4):
        if case == "B" and i == 2:
            print(f"norm {net.inp.weight.norm().item():.6f}")
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
