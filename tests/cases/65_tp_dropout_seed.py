"""torchrun --nproc-per-node 2 (gloo). Two tensor-parallel ranks. CASE_RUN=A: one seed for the replicated dropout; CASE_RUN=B: seed
plus rank.

Symptom : the model trains worse the more dropout there is; replicated activations are not what both ranks believe.
First divergence : RANK 1 only, step 0, phase forward, module `drop`, op aten.bernoulli_: input equal, mask differs, because the
                   generator does. Rank 0 differs later in the same forward, from the all-reduce of `out` on: a receiver.
Class   : RNG state (seed of a tensor-parallel rank).
Trap    : rank 0 is read first and names the all-reduce; nothing on rank 0 is at fault.
Sources : tt-metal#55947, slapo#21, Fuser#3123, Paddle#36228, anemoi-core#595.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn

class Share(torch.autograd.Function):                    # sums the ranks' parts; the gradient is the same on each
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad

class Net(nn.Module):                                    # columns of `inp` and rows of `out` are split over the ranks
    def __init__(self):
        super().__init__()
        self.drop, self.inp, self.out = nn.Dropout(0.2), nn.Linear(8, 16), nn.Linear(16, 1, bias=False)

    def forward(self, x):
        return Share.apply(self.out(torch.tanh(self.inp(self.drop(x)))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(100 + dist.get_rank())             # each rank has its own part of the weights
    net = Net()
    torch.manual_seed(dist.get_rank() if case == "B" else 0)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(2):
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
