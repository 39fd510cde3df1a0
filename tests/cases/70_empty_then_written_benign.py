"""CONTROL. CASE_RUN=A: heap blocks are clean; CASE_RUN=B: the program first freed blocks full of ones. Both use torch.empty
rightly: rows that are never written are never looked at.

Symptom : none.
First divergence : none: a buffer from torch.empty is filled by copies (module `pack`), and its unwritten tail is cut off or
                   replaced (aten.where) before anything is computed from it.
Class   : no divergence (the counterpart of 26: uninitialised memory is harmless until a value comes out of it).
Trap    : the content of the buffer differs in every run, and aten.where reads it.
Sources : pytorch#24263, tutorials#476.
"""
import hashlib, os, numpy as np, torch
from torch import nn

class Pack(nn.Module):                                   # x in the first rows of a buffer of 16
    def forward(self, x):
        packed = torch.empty(16, x.shape[1])
        packed[: len(x)] = x
        used = torch.arange(16)[:, None] < len(x)
        return torch.where(used, packed, torch.zeros(())), packed[: len(x)]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pack, self.inp, self.out = Pack(), nn.Linear(1024, 8), nn.Linear(8, 1)

    def forward(self, x):
        padded, cut = self.pack(x)
        return self.out(torch.tanh(self.inp(padded))).sum() + self.out(torch.tanh(self.inp(cut))).sum()

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(12, 1024, generator=g)
        dirt = [np.full(16 * 1024 + 16, 1.0 if case == "B" else 0.0, "float32") for _ in range(64)]
        del dirt                                         # malloc hands these blocks out again
        loss = net(x).square()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
