"""Train a small character-level GPT on the CPU, alone or data-parallel.

    python train_gpt.py
    torchrun --nproc-per-node 2 train_gpt.py --steps 8
    torchrun --nproc-per-node 2 train_gpt.py --steps 8 --fault rank=1,step=3,module=blocks.1.mlp

Two runs with the same arguments are equal bit for bit. `--fault` makes one module on one rank
return, in one step, one number that is wrong in its last bit.
"""

import argparse
import hashlib
import math
import os
import random
import re

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

GRAMMAR = {
    "sentence": ["<who> <did> <what> <when>. ", "<when>, <who> <did> <what>. ", "<said> "],
    "said": ['"<who> <did> <what>," said <who>. ', '"Who <did> <what>?" asked <who>. '],
    "who": ["the <trait> keeper", "the <trait> ferryman", "a <trait> fox", "my sister", "nobody"],
    "trait": ["old", "patient", "sleepless", "left-handed", "very small", "<trait>, <trait>"],
    "did": ["counted", "mended", "forgot", "carried home", "painted", "could not find"],
    "what": ["<number> boats", "the lamp", "the <trait> clock", "<number> letters", "the tide"],
    "number": ["two", "seven", "nineteen", "<number> or <number>", "too many"],
    "when": ["at dusk", "before the storm", "in the year of the <trait> comet", "once", "again"],
}


def write_text(rule: str, rng: random.Random) -> str:
    """Expand every <name> in a rule of the grammar, down to plain words."""
    return re.sub(r"<(\w+)>", lambda m: write_text(rng.choice(GRAMMAR[m[1]]), rng), rule)


class Attention(nn.Module):
    """Causal self-attention with all heads in one matrix product."""

    def __init__(self, d_model: int, heads: int) -> None:
        """Give each head d_model / heads channels."""
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, d_model) to the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, d_model: int, heads: int) -> None:
        """Make the layer four times as wide inside its MLP, as is usual."""
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, heads)
        self.ln2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and the MLP have to say to the residual stream."""
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x


class GPT(nn.Module):
    """A decoder-only transformer whose head shares the token embedding's weight."""

    def __init__(
        self, vocabulary: int, *, context: int, d_model: int, layers: int, heads: int
    ) -> None:
        """Draw the initial weights from torch's global generator."""
        super().__init__()
        self.token = nn.Embedding(vocabulary, d_model)
        self.position = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(Block(d_model, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token, (batch, time, vocabulary)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln(x))
        return logits


class Shard:
    """This rank's own piece of the text, and the random windows drawn from it."""

    def __init__(self, seed: int, rank: int, world: int, *, characters: int = 200_000) -> None:
        """Write the whole text, which depends on the seed only, and keep this rank's part."""
        rng = random.Random(seed)
        text = ""
        while len(text) < characters:
            text += write_text("<sentence>", rng)
        self.alphabet = sorted(set(text))
        tokens = torch.tensor([self.alphabet.index(c) for c in text[:characters]])
        self.tokens = tokens.chunk(world)[rank]
        self.generator = torch.Generator().manual_seed(seed + rank)

    def batch(self, size: int, context: int) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, each (size, context)."""
        starts = torch.randint(len(self.tokens) - context, (size, 1), generator=self.generator)
        windows = self.tokens[starts + torch.arange(context + 1)]
        return windows[:, :-1], windows[:, 1:]


def break_module(module: nn.Module) -> None:
    """Make a module return one number one ULP too large, until its `forward` is deleted again.

    A forward hook would come too late: global ones, which observers use, run before it.
    """
    forward = module.forward

    def broken(x: Tensor) -> Tensor:
        output: Tensor = forward(x)
        if x.shape != output.shape:
            raise SystemExit("--fault: the module must return the shape that it takes")
        numbers, normed = output.detach().flatten(), x.detach().flatten()
        # The sum with the residual stream must not round the bit away, so take a large number
        # where the stream (judged by its norm, the module's input) is small and of opposite sign.
        safe = (numbers * normed < 0) & (normed.abs() < 1)
        index = (numbers.abs() * safe).argmax()
        ulp = torch.zeros_like(numbers)
        ulp[index] = torch.nextafter(numbers[index], 2 * numbers[index]) - numbers[index]
        return output + ulp.view_as(output)

    module.forward = broken


def parse_fault(text: str) -> tuple[int, int, str]:
    """Read `rank=1,step=3,module=blocks.1.mlp`."""
    match = re.fullmatch(r"rank=(\d+),step=(\d+),module=([\w.]+)", text)
    if match is None:
        raise argparse.ArgumentTypeError("expected rank=R,step=N,module=NAME")
    return int(match[1]), int(match[2]), match[3]


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small character-level GPT.")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per rank")
    parser.add_argument("--context", type=int, default=64, help="characters per sequence")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="write the final parameters here")
    parser.add_argument("--fault", type=parse_fault, metavar="rank=R,step=N,module=NAME")
    return parser.parse_args()


def train(args: argparse.Namespace, rank: int, world: int) -> GPT:
    """Train for `args.steps` steps and return the model."""
    torch.manual_seed(args.seed)
    shard = Shard(args.seed, rank, world)
    gpt = GPT(
        len(shard.alphabet),
        context=args.context,
        d_model=args.d_model,
        layers=args.layers,
        heads=args.heads,
    )
    model = DistributedDataParallel(gpt) if dist.is_initialized() else gpt
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=args.lr, weight_decay=0.1)
    # A linear warm-up over five steps, then a cosine down to a tenth.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda n: min((n + 1) / 5, 0.55 + 0.45 * math.cos(math.pi * n / args.steps)),
    )
    for step in range(args.steps):
        faulty = args.fault is not None and args.fault[:2] == (rank, step)
        if faulty:
            break_module(gpt.get_submodule(args.fault[2]))
        inputs, targets = shard.batch(args.batch_size, args.context)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        if faulty:
            del gpt.get_submodule(args.fault[2]).forward
        optimizer.zero_grad()
        loss.backward()  # torch has no annotation there.
        nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return gpt


def main() -> None:
    """Train, save, and print a checksum of the final parameters."""
    args = parse_args()
    if "RANK" in os.environ:  # torchrun sets it.
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    gpt = train(args, rank, world)
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in gpt.parameters())
    # The newline goes out in the same write, or the lines of two ranks may run together.
    print(f"rank {rank} params {hashlib.sha1(data).hexdigest()}\n", end="", flush=True)
    if args.save and rank == 0:
        torch.save(gpt.state_dict(), args.save)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
