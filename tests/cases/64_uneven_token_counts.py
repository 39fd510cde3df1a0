"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: each rank divides its summed loss by the tokens per rank on average (11);
CASE_RUN=B: by its own (rank 0: 14, rank 1: 8).

Symptom : losses depend on how sequences are spread over ranks; tokens on ranks with few of them weigh more.
First divergence : step 0, phase forward, BOTH ranks: aten.div of the summed loss, outside any module: tensor equal, SCALAR
                   differs. Everything before, up to the summed loss, is equal.
Class   : arguments (normalisation). Each rank is an origin of its own: neither got it from the other.
Sources : torchtitan#2206, torchtune#1875, speculators#942, mlx-lm#1544, OpenNMT-py#2209.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TOKENS = (14, 8)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)

    def forward(self, ids):
        return self.head(torch.tanh(self.emb(ids)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    net = DDP(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net.module, optimizer=opt)
    share = TOKENS[rank] if case == "B" else sum(TOKENS) / 2
    for i in range(2):
        on_step(i)
        ids = torch.tensor([(3 * j + i + rank) % 11 for j in range(TOKENS[rank] + 1)])
        total = nn.functional.cross_entropy(net(ids[:-1]), ids[1:], reduction="sum")
        loss = total / share
        opt.zero_grad()
        loss.backward()
        opt.step()
    sha = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12]
    print(f"rank {rank} loss {loss.item():.9f} params {sha}")
    dist.destroy_process_group()
    time.sleep(0.5)                                      # else gloo threads may abort() the exiting process

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
