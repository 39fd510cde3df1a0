"""CASE_RUN=A: the averaged weights are updated after optimizer.step(); CASE_RUN=B: before it.

Symptom : training is the same to the last bit; the averaged model validates a step behind, from the first step on.
First divergence : step 1, outside of all modules: aten.lerp_ on the averaged weights comes before what the step starts from in A,
                   after the backward in B. (In step 0 B's leaves all as it was.) First value: the averaged weights at begin of
                   step 1.
Class   : structure (order). At the rung layer: state (a module outside the root), step 1.
Trap    : A's update after step 0 and B's within step 1 give the same bits, so no op differs but in its place.
Sources : NeMo Speech#5169, F5-TTS#631, micro-projects#2.
"""
import copy, hashlib, os, torch
from torch import nn

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    mean = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)

    def average():
        with torch.no_grad():
            for m, p in zip(mean.parameters(), net.parameters()):
                m.lerp_(p, 0.1)

    for i in range(4):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        if case == "B":
            average()
        opt.step()
        if case == "A":
            average()
        print(f"step {i} loss {loss.item():.9f}")
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for m in (net, mean) for p in m.parameters()))
    print("params", sha.hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
