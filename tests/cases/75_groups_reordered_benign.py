"""CASE_RUN=A: AdamW with the decayed group first; CASE_RUN=B: with the other one first.

Symptom : none while it trains. A checkpoint of the optimizer means other parameters by its numbers.
First divergence : STATE at begin of step 0: param_group option weight_decay of group 0 and of group 1. In the optimizer all
                   parameters are updated in another order, to the same bits.
Class   : state (param_group option), then structure (order). Neither the loss nor a parameter ever differs.
Trap    : a digest over parameters in the order of their updates differs.
Sources : nanoGPT#213, makani#127.
"""
import hashlib, os, torch
from torch import nn

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    decayed = {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1}
    others = {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0}
    opt = torch.optim.AdamW([others, decayed] if case == "B" else [decayed, others], lr=0.01)
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
