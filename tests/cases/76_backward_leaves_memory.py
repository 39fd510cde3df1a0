"""CASE_RUN=A: the memory that a custom backward gets is clean; CASE_RUN=B: it holds ones. The bug itself is in both: the gradient
of what the forward cut off is never written.

Symptom : the loss is right, the gradient norm is not, and with clipping by it nothing is; some day it is NaN.
First divergence : step 0, phase backward, module `cut`: the gradient that its backward returns holds memory that no op had written.
Class   : uninitialised. At the rung layer: computation, backward of module `cut`.
Trap    : the op that wrote the other part of it is equal, so "something changed after that" is not it. (The program fills the
          memory through numpy, as a stand-in for what an allocator happens to hand out.)
Sources : FBGEMM#5754, torchrec#2648.
"""
import hashlib, os, torch
from torch import nn

class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, garbage):
        ctx.shape, ctx.garbage = x.shape, garbage
        return x[:, :24].clone()

    @staticmethod
    def backward(ctx, grad):
        full = torch.empty(ctx.shape)
        full.numpy()[:] = ctx.garbage
        full[:, :24] = grad
        return full, None

class Cut(nn.Module):
    def __init__(self, garbage):
        super().__init__()
        self.garbage = garbage

    def forward(self, x):
        return First.apply(x, self.garbage)

class Net(nn.Module):
    def __init__(self, garbage):
        super().__init__()
        self.inp, self.cut, self.out = nn.Linear(8, 32), Cut(garbage), nn.Linear(24, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.cut(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net(1.0 if case == "B" else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(2):
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
