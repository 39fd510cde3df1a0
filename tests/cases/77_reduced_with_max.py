"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: gradients are all-reduced with SUM; CASE_RUN=B: with MAX.

Symptom : no error, the ranks agree with one another, the loss falls more slowly.
First divergence : step 0, after the backward, both ranks: the c10d.allreduce_ of each gradient is given another reduce_op. Each
                   rank's own gradients are equal in A and B. First value: the gradients as the optimizer gets them.
Class   : arguments. At the rung layer: collective, with the argument as evidence.
Sources : horovod#2654, pytorch#162338, nanochat#403.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1 + dist.get_rank())
    for i in range(3):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.MAX if case == "B" else dist.ReduceOp.SUM)
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {dist.get_rank()} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
