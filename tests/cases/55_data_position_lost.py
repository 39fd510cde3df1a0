"""Run CASE_RUN=A first (8 steps, checkpoint before step 4 to $CASE_DIR), then CASE_RUN=B (resumes: 4..7).

Symptom : the loss after the resume is too good: the run sees again what it has learnt, and never the end of the epoch.
First divergence : step 4, phase data, rank 0: the batch. Parameters, optimizer and torch's generators are equal.
                   The batches of B's steps 4..7 are those of A's steps 0..3.
Class   : data (position not restored). Ideal: "B repeats A's batches shifted by -4".
Sources : entrenar#294, accelerate#2823, dinov2#341, litgpt#1712, OLMo#650.
"""
import hashlib, os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CK = os.path.join(os.environ.get("CASE_DIR", "/tmp"), os.path.basename(__file__) + ".pt")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.drop(torch.tanh(self.inp(x))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
    loader = iter(DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2)))
    start = 0
    if case == "B":                          # the bug: the batches of steps 0..3 are not skipped
        ck = torch.load(CK)
        net.load_state_dict(ck["model"]), opt.load_state_dict(ck["opt"]), torch.set_rng_state(ck["rng"])
        start = 4
    on_ready(model=net, optimizer=opt)
    for i in range(start, 8):
        if i == 4 and case == "A":
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "rng": torch.get_rng_state()}, CK)
        on_step(i)
        (x,) = next(loader)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
