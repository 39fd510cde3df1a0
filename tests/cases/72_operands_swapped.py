"""CASE_RUN=A: scores are q @ k^T; CASE_RUN=B: k @ q^T (ported from a layout in which that was the same).

Symptom : shapes are right, nothing fails, the loss of step 0 is another one; with one head and no mask it nearly trains as well.
First divergence : step 0, phase forward, module `att`, op aten.bmm: its two operands have changed places. Both are equal to the
                   last bit in A and B, as tensors and as a set.
Class   : structure (made from other things). NOT a nondeterministic kernel, although all that the op read is equal.
Trap    : inputs kept as a set, or sorted, hold no trace of it.
Sources : DenoisingDiffusionProbabilityModel-ddpm-#26, llm.c#531, transformer-from-scratch#1.
"""
import hashlib, os, torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.q, self.k, self.v, self.swapped = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), swapped

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = k @ q.mT if self.swapped else q @ k.mT
        return scores.softmax(-1) @ v

class Net(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.att, self.out = Attention(swapped), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.att(x))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net(swapped=case == "B")
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(4, 6, 8, generator=g)
        loss = (net(x)[..., 0] - x.sum(-1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
