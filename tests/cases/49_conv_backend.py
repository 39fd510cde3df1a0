"""CASE_RUN=A: convolutions by oneDNN; CASE_RUN=B: oneDNN switched off, so by PyTorch's own im2col and GEMM.

Symptom : same container, same seed, other build or other flag: losses differ in the seventh digit from the start.
First divergence : step 0, phase forward, module `conv`, op aten.convolution, rank 0: inputs equal, output differs.
Class   : environment (the flag torch.backends.mkldnn decides which library computes it). Not a nondeterministic kernel.
Sources : pytorch#18218, pytorch#25186, PySyft#2964, pytorch#170016.
"""
import hashlib, os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Linear(32, 4)

    def forward(self, x):
        return self.fc(self.act(self.conv(x)).mean((2, 3)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.backends.mkldnn.set_flags(case != "B")
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x, y = torch.randn(4, 16, 16, 16, generator=g), torch.randint(0, 4, (4,), generator=g)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
