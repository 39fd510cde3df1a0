"""Run CASE_RUN=A first (8 steps, checkpoint before step 4 to $CASE_DIR), then CASE_RUN=B (resumes: 4..7).

Symptom : after the resume some steps are skipped again, or small gradients underflow; the loss is no longer the same.
First divergence : STATE at begin of step 4, rank 0: the gradient scaler's scale (4096 in A, the initial 1024 in B) and its
                   growth tracker. First differing op: step 4, aten.mul of the loss by the scale. Parameters, optimizer,
                   batch and loss of step 4 are equal.
Class   : state (gradient scaler, not in the checkpoint).
Note    : scales are powers of two, so the bits come out equal until a gradient under- or overflows in fp16: here none
          does, and the parameters never differ.
Sources : transformers#11323, torchtitan#146, tango#154, ultralytics#22189, metaseq#3.
"""
import hashlib, os, torch
from torch import nn

CK = os.path.join(os.environ.get("CASE_DIR", "/tmp"), os.path.basename(__file__) + ".pt")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    g = torch.Generator().manual_seed(1)
    start = 0
    if case == "B":
        ck = torch.load(CK)
        net.load_state_dict(ck["model"]), opt.load_state_dict(ck["opt"]), g.set_state(ck["data"])
        start = 4
    on_ready(model=net, optimizer=opt, scaler=scaler)
    for i in range(start, 8):
        if i == 4 and case == "A":           # the bug: scaler.state_dict() is not saved
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "data": g.get_state()}, CK)
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(f"step {i} loss {loss.item():.9f} scale {scaler.get_scale()}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
