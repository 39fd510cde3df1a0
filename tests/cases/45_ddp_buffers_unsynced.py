"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: DDP as it comes; CASE_RUN=B: DDP(broadcast_buffers=False).

Symptom : loss curves are equal to the last bit, but the two ranks validate to different accuracies in B.
First divergence : STRUCTURE: the c10d.broadcast_ of the batch-norm buffers before each forward is in A only. That of step 0 and,
                   on rank 0, all of them bring what is there already; the first to change something is rank 1's of
                   step 1. First value at the rung layer: on rank 1 only, the running statistics of `bn`, step 1 or 2.
Class   : structure (a missing collective). No loss and no parameter ever differs: batch statistics train, running ones do not.
Trap    : within run A the ranks' buffers differ too at the end of each step, rightly.
Sources : detectron2#1297, mmdetection#2539, pytorch#30718, pytorch-image-models#110, speechbrain#2814.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.bn, self.out = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.bn(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(Net(), broadcast_buffers=case != "B")
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net.module, optimizer=opt)
    g = torch.Generator().manual_seed(1 + dist.get_rank())
    for i in range(4):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {dist.get_rank()} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
