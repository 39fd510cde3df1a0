"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: forward and backward of the first micro-batch in no_sync; CASE_RUN=B: the
backward only.

Symptom : gradient accumulation is no faster, gradients are reduced in every micro-batch, and the bits differ a little.
First divergence : STRUCTURE at step 0, micro-batch 0, phase backward, both ranks: DDP fills its bucket and calls
                   c10d.allreduce_ in B, not in A (what no_sync forbids is decided in the forward). Forward and loss of
                   both micro-batches are equal.
Class   : structure / collective (a reduction more).
Sources : accelerate#1726, PiPPy#1133, ClassyVision#706, stylegan2-ada-pytorch#233.
"""
import contextlib, hashlib, os, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net.module, optimizer=opt)
    g = torch.Generator().manual_seed(1 + dist.get_rank())
    for i in range(2):
        on_step(i)
        opt.zero_grad()
        for last in (False, True):
            x = torch.randn(8, 8, generator=g)
            quiet = contextlib.nullcontext if last else net.no_sync
            with contextlib.nullcontext() if case == "B" else quiet():
                loss = (net(x)[:, 0] - x.sum(1)).square().mean() / 2
                with quiet():
                    loss.backward()
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {dist.get_rank()} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
