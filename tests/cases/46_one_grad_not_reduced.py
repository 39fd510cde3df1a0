"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: every gradient is all-reduced; CASE_RUN=B: that of norm.weight is left out.

Symptom : no error, no NaN; the replicas' norm weights drift apart by an optimizer step at a time, the loss follows.
First divergence : step 0, after the backward, both ranks: the c10d.allreduce_ of 16 floats (norm.weight) is in A only.
                   Each rank's own gradients are equal in A and B. First value: the gradient of norm.weight as the
                   optimizer gets it, then norm.weight itself; every other parameter of step 0 is equal.
Class   : structure / collective (a missing reduction). At the rung layer: collective, module `norm`, step 0.
Trap    : "the second all-reduce of the step" is another one in B: matching collectives by their number only blames all
          that follow.
Sources : Megatron-LM#1446, TransformerEngine#435, NeMo-RL#3716, gpt-neox#1259.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)
        self.norm = nn.LayerNorm(16, bias=False)

    def forward(self, x):
        return self.out(self.norm(self.inp(x)))

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
        opt.zero_grad()
        loss.backward()
        for name in ("norm.weight", "inp.weight", "out.weight"):
            if case == "A" or not name.startswith("norm"):
                dist.all_reduce(net.get_parameter(name).grad)
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {dist.get_rank()} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
