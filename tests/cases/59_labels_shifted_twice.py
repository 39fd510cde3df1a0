"""CASE_RUN=A: labels are the ids, the model shifts them; CASE_RUN=B: the collator has shifted them already.

Symptom : the loss goes down nicely, and the model has learnt to predict the token after the next one.
First divergence : step 0, phase data, rank 0: argument `labels` of the model; `ids` is equal. In the model everything up to
                   the logits agrees; aten.nll_loss_forward is the first computation to differ.
Class   : data (labels).
Sources : transformers#44642, RRHF#49, amber-train#6, InternLM#318, transformers#562.
"""
import hashlib, os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.mix, self.head = nn.Embedding(11, 16), nn.Linear(16, 16), nn.Linear(16, 11)

    def forward(self, ids, labels):
        logits = self.head(torch.tanh(self.mix(self.emb(ids))))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    for i in range(3):
        on_step(i)
        ids = [[(7 * j + 3 * row + i) % 11 for j in range(12)] for row in range(4)]
        labels = [row[1:] + [-100] for row in ids] if case == "B" else ids
        loss = net(ids=torch.tensor(ids), labels=torch.tensor(labels))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
