"""torchrun --nproc-per-node 2 (gloo). CASE_RUN=A: gradients reduced in fp32; CASE_RUN=B: in bf16 (a compression hook of DDP).

Symptom : the loss of step 0 is equal, the gradient norm agrees to three digits only, curves part slowly.
First divergence : step 0, phase backward, both ranks, between the local gradients, which are equal, and the reduction: the
                   bucket is cast to bf16 (aten._to_copy) in B only, and c10d.allreduce_ gets bf16 instead of fp32.
Class   : structure (the cast is a further op) or metadata (dtype of what is reduced).
Sources : torchtitan#1028, Megatron-LM#502, Megatron-LM#372, prime-rl#987.
"""
import hashlib, os, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def reduce_in(dtype):
    def hook(_, bucket):                                 # as torch's bf16_compress_hook, which wants NCCL
        small = bucket.buffer().to(dtype).div_(dist.get_world_size())
        future = dist.all_reduce(small, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
    return hook

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(Net())
    net.register_comm_hook(None, reduce_in(torch.bfloat16 if case == "B" else torch.float32))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net.module, optimizer=opt)
    g = torch.Generator().manual_seed(1 + dist.get_rank())
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
