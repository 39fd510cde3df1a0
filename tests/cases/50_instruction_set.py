"""Run with ATEN_CPU_CAPABILITY=default as A and ATEN_CPU_CAPABILITY=avx2 as B (CASE_RUN is ignored; x86 only): what happens
when a job moves to a host with another CPU.

Symptom : fully seeded, deterministic algorithms on, one thread; stable on each machine, different between them.
First divergence : step 0, phase forward, module `norm`, op aten.native_layer_norm, rank 0: inputs equal, output differs (the
                   sums run over vectors of another width). `inp` before it is a BLAS call and agrees.
Trap    : torch's uniform_ rounds otherwise too (a fused multiply-add), so usually the initial weights differ already. Here
          weights and data are numpy's, as if from a checkpoint.
Class   : environment (instruction set). Not a nondeterministic kernel.
Sources : pytorch#155423, pytorch#155552, pytorch#54684, oneDNN#1354, numpy#23523.
"""
import hashlib, os, numpy as np, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(8, 48), nn.LayerNorm(48), nn.Linear(48, 1)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.from_numpy(np.random.default_rng(p.numel()).uniform(-0.5, 0.5, p.shape).astype("float32")))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    data = np.random.default_rng(1).uniform(-1.0, 1.0, (3, 64, 8)).astype("float32")
    for i in range(3):
        on_step(i)
        x = torch.from_numpy(data[i])
        loss = (net(x)[:, 0] - x[:, 0]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
