"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: clean; CASE_RUN=B: one value of rank 1's batch differs at step 1.

Symptom : the losses of ALL ranks differ from step 1 on, though only one rank was given other data.
First divergence : step 1, phase data, rank 1. Rank 0's model computes what it did in A; its loss differs, since it is
                   made with the features that rank 1 gave to c10d.allgather_, between the model and the loss.
Class   : data on rank 1; rank 0 received.
Trap    : at the rung layer nothing is seen between the model and the loss but the collective: a tool that lets a loss
          read the model's output alone blames rank 0's loss.
Sources : open_clip#616, accelerate#1154, solo-learn#258, Chinese-CLIP#54.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1 + rank)
    for i in range(3):
        on_step(i)
        x = torch.randn(8, 8, generator=g).numpy()
        x[2, 3] += float(case == "B" and rank == 1 and i == 1)
        z = net(torch.from_numpy(x))
        features = [torch.empty_like(z) for _ in range(2)]
        dist.all_gather(features, z.detach())
        loss = F.cross_entropy(z @ torch.cat(features).T, torch.arange(8) + 8 * rank)
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {rank} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
