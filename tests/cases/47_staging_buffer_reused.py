"""CASE_RUN=A: two staging buffers in turn; CASE_RUN=B: one, which the prefetch thread refills while the batch is in use.

Symptom : loss looks right, gradients are wrong now and then; a synchronisation or a clone "fixes" it. (Here the thread is
          joined between forward and backward, so that the race always ends the same way.)
First divergence : step 0, phase backward, module `inp`, rank 0: the weight gradient, aten.mm: its gradient input is equal,
                   the batch it reads is not, and no op has written it since the forward, which is equal (loss too).
Class   : unseen producer (a write from outside torch: another thread, a copy in flight). NOT aten.mm, NOT data: the
          batch of step 0 was right when the forward read it.
Note    : seen by who digests anew what an op reads (fpdiff record --rehash); else aten.mm looks guilty.
Trap    : the write goes through numpy, so no version counter moves and autograd's check of saved tensors stays silent.
Sources : warp#1384, tutorials#3261, 1bit-MONSTER#2344, 1bit-MONSTER#2436.
"""
import hashlib, os, numpy as np, threading, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))

def run(case, on_ready=lambda **k: None, on_step=lambda i: None):
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    on_ready(model=net, optimizer=opt)
    source = np.sin(np.arange(5 * 16 * 8, dtype="float32")).reshape(5, 16, 8)
    staging = [np.zeros((16, 8), "float32") for _ in range(1 if case == "B" else 2)]
    staging[0][:] = source[0]
    for i in range(4):
        on_step(i)
        x = torch.from_numpy(staging[i % len(staging)])
        y = torch.from_numpy(source[i].sum(1))
        loss = (net(x)[:, 0] - y).square().mean()
        prefetch = threading.Thread(target=np.copyto, args=(staging[(i + 1) % len(staging)], source[i + 1]))
        prefetch.start()
        prefetch.join()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {i} loss {loss.item():.9f}")
    print("params", hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:12])

if __name__ == "__main__":
    run(os.environ.get("CASE_RUN", "A"))
