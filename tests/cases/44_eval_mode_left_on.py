"""CASE_RUN=A: train() again after the evaluation that follows step 1; CASE_RUN=B: forgotten.

Symptom : the training loss drops at the first evaluation and overfits from then on; nothing fails.
First divergence : STATE at step 2, rank 0: the training flag of the model and of `drop`. First differing op: step 2,
                   phase forward, module `drop`: aten.bernoulli_ and aten.mul in A only. Parameters, batch and
                   generators at the begin of step 2 are equal, and so is the evaluation.
Class   : state (training flag). The missing dropout ops, the other generator later on: consequences.
Sources : coRNN#1, mmd#14, mcan-vqa#26, tutorials#1624.
"""
import hashlib, os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    g = torch.Generator().manual_seed(1)
    held_out = torch.randn(8, 8, generator=g)
    for i in range(4):
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
        if i == 1:
            net.eval()
            with torch.no_grad():
                net(held_out)
            if case == "A":
                net.train()
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
