"""Run CASE_RUN=A first (8 steps, checkpoint before step 4 to $CASE_DIR), then CASE_RUN=B (resumes: 4..7).

Symptom : the loss after the resume is equal for a step or some, then off by a little for ever; every resume costs a bit.
First divergence : STATE at begin of step 4, rank 0: the fp32 master weights that the optimizer holds (B rounds them up from the
                   bf16 weights of the checkpoint). The bf16 weights, the moments and the batch are equal, so are
                   forward, backward and gradients of step 4. First differing op: the update, phase optimizer of step 4.
Class   : state (master weights).
Sources : OpenTau#185, megablocks#80, NeMo-RL#2372, ParlAI#1772.
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
    net = Net().bfloat16()
    g = torch.Generator().manual_seed(1)
    start, ck = 0, None
    if case == "B":
        ck = torch.load(CK)
        net.load_state_dict(ck["model"]), g.set_state(ck["data"])
        start = 4
    masters = [p.detach().float() for p in net.parameters()]
    opt = torch.optim.SGD(masters, lr=0.01, momentum=0.9)
    if ck is not None:
        opt.load_state_dict(ck["opt"])                   # moments only: an optimizer saves no weights
    on_ready(model=net, optimizer=opt)
    for i in range(start, 8):
        if i == 4 and case == "A":
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "data": g.get_state()}, CK)
        on_step(i)
        x = torch.randn(16, 8, generator=g).bfloat16()
        loss = (net(x)[:, 0].float() - x.float().sum(1)).square().mean()
        net.zero_grad()
        loss.backward()
        for master, p in zip(masters, net.parameters()):
            master.grad = p.grad.float()
        opt.step()
        with torch.no_grad():
            for master, p in zip(masters, net.parameters()):
                p.copy_(master)
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in masters)).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
