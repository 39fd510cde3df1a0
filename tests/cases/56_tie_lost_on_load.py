"""Run CASE_RUN=A first (8 steps, checkpoint before step 4 to $CASE_DIR), then CASE_RUN=B (resumes: 4..7).

Symptom : the first loss after the resume is right, the second is not; the model has more parameters than before.
First divergence : STRUCTURE at step 4, rank 0: parameter `head.weight` exists in B only. In A it is emb.weight; loading with
                   assign=True a checkpoint that holds both, each on its own, has parted them. All values at the begin of
                   step 4, the forward and the loss are equal; the gradient of emb.weight is the first value to differ.
Class   : state (a parameter of its own where there was a tied one).
Sources : TransformerLens#1725, NeMo-Automodel#2571, accelerate#1204, transformers#11682.
"""
import hashlib, os, torch
from torch import nn

CK = os.path.join(os.environ.get("CASE_DIR", "/tmp"), os.path.basename(__file__) + ".pt")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.mix, self.head = nn.Embedding(11, 16), nn.Linear(16, 16), nn.Linear(16, 11, bias=False)
        self.head.weight = self.emb.weight               # tied

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.emb(ids))))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    start = 0
    if case == "B":
        net.load_state_dict(torch.load(CK), assign=True)             # the bug: nobody ties them again
        start = 4
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    for i in range(start, 8):
        if i == 4 and case == "A":           # each tensor by itself, as formats without aliasing store them
            torch.save({name: t.clone() for name, t in net.state_dict().items()}, CK)
        on_step(i)
        ids = (torch.arange(22).reshape(2, 11) * 7 + i) % 11
        loss = nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
