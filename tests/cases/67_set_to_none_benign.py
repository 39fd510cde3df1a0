"""CASE_RUN=A: zero_grad(set_to_none=True), the default since 2.0; CASE_RUN=B: set_to_none=False, the default before.

Symptom : none: losses and weights are equal to the last bit.
First divergence : STRUCTURE only: step 1, rank 0: B zeroes the old gradients (aten.zero_ / aten._foreach_zero_) and, in the
                   backward, adds the new ones to them; A takes the new ones as they are. Step 0 is alike.
Class   : structural, benign (a control against false alarms): neither the loss nor a parameter ever differs.
Trap    : 0 + (-0) is +0, so the sign of a zero gradient may differ, as those of units that are off; weights do not notice.
Sources : pytorch#92731, pytorch#41696, pytorch#42754.
"""
import hashlib, os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.relu(self.inp(x) - 1.5))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    for i in range(3):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad(set_to_none=case != "B")
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
