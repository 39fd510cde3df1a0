"""CONTROL. CASE_RUN=A: trains; CASE_RUN=B: also writes a checkpoint after step 1, logs the weights' norm and evaluates.

Symptom : none. B does more, and all that it does leaves the training as it is: copies, norms, a forward without dropout.
First divergence : none: every step's state, batch, forward, backward and update is equal.
Class   : no divergence (a control against false alarms: what one run alone does and nothing reads is a note at most).
Trap    : the evaluation of 43 looks just like this one, but draws a number.
Sources : Actually-Robust-Training#137, pytorch#12935, allennlp#5220, pytorch#80119.
"""
import hashlib, io, os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.bn, self.drop, self.out = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.bn(self.inp(x)))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
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
        if i == 1 and case == "B":
            torch.save({"model": {k: v.clone() for k, v in net.state_dict().items()}, "opt": opt.state_dict()}, io.BytesIO())
            print("norm", sum(p.detach().norm() for p in net.parameters()).item())
            net.eval()
            with torch.no_grad():
                print("held out", (net(held_out)[:, 0] - held_out.sum(1)).square().mean().item())
            net.train()
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
