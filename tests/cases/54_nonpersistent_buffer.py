"""Run CASE_RUN=A first (8 steps, checkpoint before step 4 to $CASE_DIR), then CASE_RUN=B (resumes: 4..7).

Symptom : load_state_dict(strict=True) is happy, parameters are all there, and the resumed loss jumps.
First divergence : STATE at begin of step 4, rank 0: buffer `scale.peak` (registered with persistent=False, so never in a
                   state_dict; the running maximum starts again in B). First differing op: step 4, phase forward,
                   aten.maximum in module `scale`. Parameters, optimizer and batch are equal.
Class   : state (buffer, not in the checkpoint).
Trap    : a tool that compares state_dicts compares everything but this.
Sources : vllm#44371, transformers#48892, alf#1826, pytorch#122792.
"""
import hashlib, os, torch
from torch import nn

CK = os.path.join(os.environ.get("CASE_DIR", "/tmp"), os.path.basename(__file__) + ".pt")

class Scale(nn.Module):                                  # divides by the largest value seen so far
    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.peak.copy_(torch.maximum(self.peak, x.detach().abs().max()))
        return x / self.peak

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.inp, self.out = Scale(), nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(self.scale(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    start = 0
    if case == "B":
        ck = torch.load(CK)
        net.load_state_dict(ck["model"]), opt.load_state_dict(ck["opt"]), g.set_state(ck["data"])
        start = 4
    on_ready(model=net, optimizer=opt)
    for i in range(start, 8):
        if i == 4 and case == "A":
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "data": g.get_state()}, CK)
        on_step(i)
        x = torch.randn(16, 8, generator=g) * (3.0 if i == 0 else 1.0)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
