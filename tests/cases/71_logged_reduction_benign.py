"""CONTROL. torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: trains; CASE_RUN=B: in every step also all-reduces the loss, in order
to log its mean over the ranks.

Symptom : none: the reduction is of a copy.
First divergence : none. B has one collective more in each step, ahead of those of the gradients, and of the same group.
Class   : no divergence (a control against false alarms; the counterpart of 46, where a collective is missing that matters).
Trap    : whoever matches collectives by their number compares the loss's with a gradient's, and on each rank.
Sources : ms-swift#9966, Lightning#10122, OLMo#279, modded-nanogpt#2.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1 + dist.get_rank())
    for i in range(3):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        if case == "B":
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            print(f"step {i} mean loss {mean.item() / 2:.9f}")
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {dist.get_rank()} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
