"""CASE_RUN=A: scaler.unscale_, then clip_grad_norm_; CASE_RUN=B: clip_grad_norm_ on the scaled gradients.

Symptom : with fp16 the model hardly learns: the norm that is clipped is a thousand times too large, so always clipped.
First divergence : STRUCTURE at step 0, rank 0, after the backward: aten._amp_foreach_non_finite_check_and_unscale_ comes before
                   the norm in A and after it (inside scaler.step) in B. Loss and gradients of the backward are equal;
                   the norm is the first value to differ.
Class   : structure (two steps of the program in another order).
Sources : pytorch/examples#1196, Pytorch-UNet#468, returnn#1595, super-gradients#653.
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
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    on_ready(model=net, optimizer=opt, scaler=scaler)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        if case == "A":
            scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {i} loss {loss.item():.9f} norm {norm.item():.6f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
