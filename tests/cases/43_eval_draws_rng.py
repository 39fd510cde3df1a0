"""CASE_RUN=A: no validation; CASE_RUN=B: validation after step 1, unshuffled, in eval mode, under no_grad.

Symptom : "validation must not change training", but runs that validate and runs that do not part ways.
First divergence : step 2 (before its forward), rank 0: a draw, aten.random_, from torch's global generator, in B only: making
                   the iterator of the validation loader draws a base seed though nothing is shuffled. Its consequence,
                   and all that can be told at the rung layer: phase forward, module `drop`, aten.bernoulli_: input
                   equal, mask differs. Parameters, optimizer and batch at the begin of step 2 are equal.
Class   : structure (a draw more) by the cause, RNG state by its consequence. The validation itself is harmless and no
          divergence.
Sources : pytorch#80119, pytorch#11062, pytorch#20717, Lightning#9017, pytorch#12935.
"""
import hashlib, os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.inp(x))))

@torch.no_grad()
def validate(net, loader):
    net.eval()
    for (x,) in loader:
        net(x)
    net.train()

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    valid = DataLoader(TensorDataset(torch.randn(8, 8, generator=g)), batch_size=4)
    for i in range(4):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
        if i == 1 and case == "B":
            validate(net, valid)
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
