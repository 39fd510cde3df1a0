"""Run CASE_RUN=A first (8 steps, checkpoint before step 4 to $CASE_DIR), then CASE_RUN=B (resumes: 4..7).

Symptom : the training loss continues as if nothing had happened; the averaged model that is evaluated is worse for long.
First divergence : STATE at begin of step 4, rank 0: the weights of the averaged copy, a module outside the model (B makes it anew
                   from the current weights). Model, optimizer, generators and batches are equal, and stay so.
Class   : state (EMA, not in the checkpoint). Neither the loss nor a parameter that is trained ever differs.
Sources : ace#349, Samudra#282, yolov5#310, Enerzyme#36.
"""
import copy, hashlib, os, torch
from torch import nn

CK = os.path.join(os.environ.get("CASE_DIR", "/tmp"), os.path.basename(__file__) + ".pt")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    start = 0
    if case == "B":
        ck = torch.load(CK)
        net.load_state_dict(ck["model"]), opt.load_state_dict(ck["opt"]), g.set_state(ck["data"])
        start = 4
    ema = copy.deepcopy(net).requires_grad_(False)
    on_ready(model=net, optimizer=opt, ema=ema)
    for i in range(start, 8):
        if i == 4 and case == "A":           # the bug: ema.state_dict() is not saved
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "data": g.get_state()}, CK)
        on_step(i)
        x = torch.randn(16, 8, generator=g)
        loss = (net(x)[:, 0] - x.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for average, p in zip(ema.parameters(), net.parameters()):
                average.lerp_(p, 0.1)
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
