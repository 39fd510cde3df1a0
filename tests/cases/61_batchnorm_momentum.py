"""CASE_RUN=A: BatchNorm1d(momentum=0.1); CASE_RUN=B: momentum=0.9 (ported from a framework that counts it the other way round).

Symptom : training is bit for bit the same, evaluation is erratic.
First divergence : step 0, phase forward, module `bn`, op aten.native_batch_norm, rank 0: tensors equal, SCALAR momentum
                   differs. First value: the running statistics that it writes; its output is equal.
Class   : arguments. Neither the loss nor a parameter ever differs.
Trap    : a recorder that hashes only outputs sees it a step late, in the buffers.
Sources : pytorch/examples#289, vision#8250, tacotron_pytorch#19, PyTorch-YOLOv3#230, deeplab-pytorch#79.
"""
import hashlib, os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.inp, self.bn, self.out = nn.Linear(8, 32), nn.BatchNorm1d(32, momentum=momentum), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.relu(self.bn(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net(0.9 if case == "B" else 0.1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
