"""Flips one bit in the output of one op of one rank, many times, and asks fpdiff where.

    python bench/faults.py [--model ddp|fsdp2] [--faults 300] [--seed 0]

Two ranks train a small GPT for three steps at rung op, once untouched and once for each fault: one
bit of what one op call made on one rank in one step, below the recorder, as a faulty kernel would.
The place is drawn from what the untouched run recorded, so that forward, backward, optimizer and
collectives each get a share. fpdiff must name that step, rank, phase, module, op and occurrence as
the only origin, and must call the other rank a receiver if it differs at all. Prints a confusion
table, and exits 1 unless all are right.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from flip import Fault, flipping, judge, places, share_of
from rich.console import Console
from rich.table import Table
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import fpdiff
from fpdiff.examples.train_gpt import GPT

RANKS = 2
STEPS = 3
PHASES = ("forward", "backward", "optimizer", "collective")


def train(model_kind: str) -> None:
    """Train a small GPT for a few steps."""
    torch.manual_seed(0)
    model: Any = GPT(64, context=16, d_model=32, layers=2, heads=2)
    if model_kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(distributed.get_rank())
    for _ in range(STEPS):
        tokens = torch.randint(64, (2, 17), generator=generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()


def work(model_kind: str, folder: Path) -> None:
    """Be one rank: train once for each fault that lies in the folder."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    for path in sorted(folder.glob("*.json")):
        text = json.loads(path.read_text())
        fault = Fault(**text) if text else None
        own = fault if fault is not None and fault.rank == rank else None
        distributed.barrier()
        with flipping(own), fpdiff.record(path.with_suffix(".run"), level="op"):
            train(model_kind)
        distributed.barrier()
    distributed.destroy_process_group()


def run_ranks(model_kind: str, folder: Path) -> None:
    """Start the ranks, and wait."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [__file__, "--model", model_kind, "--work", str(folder)]
    done = subprocess.run(
        command,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the ranks failed:\n{done.stdout}{done.stderr}")


def sample(found: list[Fault], number: int, seed: int) -> list[Fault]:
    """Return places from each share in turn, in random order within it."""
    draw = random.Random(seed)
    shares: dict[str, list[Fault]] = {
        phase: [f for f in found if share_of(f) == phase] for phase in PHASES
    }
    for share in shares.values():
        draw.shuffle(share)
    chosen: list[Fault] = []
    while len(chosen) < number and any(shares.values()):
        for share in shares.values():
            if share and len(chosen) < number:
                chosen.append(share.pop())
    return chosen


def matrix(model_kind: str, number: int, seed: int) -> list[tuple[Fault, str, str]]:
    """Return what came of each fault: (fault, verdict on fpdiff, details)."""
    with tempfile.TemporaryDirectory(prefix="fpdiff-faults-") as name:
        folder = Path(name) / "untouched"
        folder.mkdir()
        (folder / "0.json").write_text("null")
        (folder / "1.json").write_text("null")
        run_ranks(model_kind, folder)
        untouched, twin = folder / "0.run", folder / "1.run"
        if (same := fpdiff.compare(untouched, twin)).verdict != "identical":
            raise SystemExit(f"twins without a fault differ: {same.summary}")
        faults = sample(places(untouched), number, seed)
        outcomes = []
        for first in range(0, len(faults), 50):
            part = Path(name) / f"part{first}"
            part.mkdir()
            for index, fault in enumerate(faults[first : first + 50]):
                (part / f"{index:03d}.json").write_text(json.dumps(asdict(fault)))
            run_ranks(model_kind, part)
            for index, fault in enumerate(faults[first : first + 50]):
                outcomes.append((fault, *judge(untouched, part / f"{index:03d}.run", fault)))
            shutil.rmtree(part)
        return outcomes


def table_of(model_kind: str, outcomes: list[tuple[Fault, str, str]]) -> Table:
    """Return the confusion table."""
    names = sorted({outcome for _, outcome, _ in outcomes} | {"exact"}, key=lambda n: n != "exact")
    table = Table("share", "faults", "ops", *names, title=f"{model_kind}, {RANKS} ranks, rung op")
    for phase in PHASES:
        own = [(f, o) for f, o, _ in outcomes if share_of(f) == phase]
        ops = len({f.op for f, _ in own})
        counts = [str(sum(o == name for _, o in own)) for name in names]
        table.add_row(phase, str(len(own)), str(ops), *counts)
    return table


def main() -> int:
    """Run the matrix and print the table."""
    parser = argparse.ArgumentParser(description="Flip bits and ask fpdiff where.")
    parser.add_argument("--model", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        work(args.model, args.work)
        return 0
    outcomes = matrix(args.model, args.faults, args.seed)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table_of(args.model, outcomes))
    wrong = [(f, o, d) for f, o, d in outcomes if o != "exact"]
    for fault, outcome, details in wrong[:20]:
        console.print(f"{outcome}: {fault}\n  {details}", soft_wrap=True, highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
