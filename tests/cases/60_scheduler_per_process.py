"""CASE_RUN=A: the scheduler steps once a step; CASE_RUN=B: twice, once for each of two processes.

Symptom : on several GPUs the warm-up and the decay are over too early, by the number of GPUs.
First divergence : STATE at step 1, rank 0: param_group option lr. Parameters, moments and batch of step 1 are equal, and so
                   are its forward, loss and gradients. First differing op: the update, phase optimizer of step 1, a scalar.
Class   : state (learning rate, scheduler counted in another unit).
Sources : accelerate#2926, accelerate#2142, accelerate#1398, transformers#24088, diffusers#3954.
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
    opt = torch.optim.AdamW(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(opt, start_factor=1.0, end_factor=0.1, total_iters=8)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(4):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        for _ in range(2 if case == "B" else 1):
            schedule.step()
        print(f"step {i} loss {loss.item():.9f} lr {schedule.get_last_lr()[0]:.6f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
