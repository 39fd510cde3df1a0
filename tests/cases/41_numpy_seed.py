"""CASE_RUN=A: torch and numpy seeded; CASE_RUN=B: only torch ("torch.manual_seed is enough").

Symptom : "I have set the seed", and every run gives another loss from the first step on.
First divergence : step 0, phase data, rank 0: the batch, which was jittered with numpy's global generator. Parameters
                   and torch's generators at the begin of step 0 are equal; numpy's generator is not.
Class   : data, made with a generator that was not seeded. Best: name numpy's generator.
Note    : numpy's and Python's generators differ in any two runs that do not seed them, mostly harmlessly: only what
          was drawn from them counts.
Sources : ViP#25, scar#97, dhSegment-torch#4, pytorch#5059.
"""
import hashlib, os, numpy as np, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    if case == "A":
        np.random.seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    clean = np.sin(np.arange(3 * 16 * 8, dtype="float32")).reshape(3, 16, 8)
    for i in range(3):
        on_step(i)
        x = torch.from_numpy((clean[i] * np.random.uniform(0.9, 1.1, (16, 1))).astype("float32"))
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
