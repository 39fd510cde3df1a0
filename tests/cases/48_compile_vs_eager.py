"""CASE_RUN=A: eager; CASE_RUN=B: the block is compiled (torch.compile).

Symptom : the compiled run's loss agrees to six digits in step 0 and drifts; "compile changes my results".
First divergence : step 0, phase forward, module `blk`, rank 0: its ops (aten.gelu, aten.native_layer_norm...) are in A only, those
                   of a compiled graph in B only (which come first in the report does not matter); the input is equal,
                   the output is not. `inp` before it agrees in all ops.
Class   : structure (another program computes the block) or, where only its output is looked at, the block's output
          from equal inputs. Not `inp`, not `out`, not the optimizer.
Trap    : an observer that makes compiled code run eagerly, or breaks its graph, finds the runs equal.
Note    : the backend is the one that lowers to decomposed ATen ops without a C++ compiler; inductor parts there too.
Sources : pytorch#113180, pytorch#159239, pytorch#150165, pytorch#138908.
"""
import hashlib, os, torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x):
        return self.norm(nn.functional.gelu(x)) * 1.7 + x.softmax(-1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.blk, self.out = nn.Linear(8, 32), Block(), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.blk(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    if case == "B":
        net.blk.compile(backend="aot_eager_decomp_partition")
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(64, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
