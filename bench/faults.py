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
import collections
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import fpdiff
from fpdiff.examples.train_gpt import GPT

RANKS = 2
STEPS = 3
PHASES = ("forward", "backward", "optimizer", "collective")
MADE = ("result", "written", "received")


@dataclass(frozen=True)
class Fault:
    """One bit to flip, and what fpdiff must say of it.

    `nth` counts the calls of the op from the rank's first module call on.
    """

    rank: int
    nth: int
    op: str
    kind: str
    slot: str
    step: int
    phase: str
    module: str
    occurrence: int


class Flip(TorchDispatchMode):
    """Flips a bit of the first element of what one call of an op made."""

    def __init__(self, fault: Fault | None) -> None:
        """Take the fault of this rank, None to do nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.fault = fault
        self.is_counting = False
        self.calls = 0
        self.landing: dict[int, bool] = {}  # by address, whether to flip a bit there

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an op; if it is the one, flip the bit."""
        result = func(*args, **(kwargs or {}))
        fault = self.fault
        if any(kind.__module__.startswith("torch._subclasses") for kind in types):
            return result  # A tracer at work on shapes: nothing is recorded of it.
        if str(func) == "aten.copy_.default" and args[0].data_ptr() in self.landing:
            # The wait for a reduce-scatter, with gloo: its output is there only now.
            if self.landing.pop(args[0].data_ptr()):
                flip(args[0])
            return result
        if str(func).startswith("_c10d_functional.wait_tensor"):
            if self.landing.pop(args[0].data_ptr(), False):
                flip(args[0])
            return result
        if "reduce_scatter" in str(func) or func.namespace == "_c10d_functional":
            output = args[0] if func.namespace == "c10d" else result
            self.landing[output.data_ptr()] = False
            if fault is not None and self.is_counting and str(func) == fault.op:
                self.landing[output.data_ptr()] = fault.nth == self.calls
                self.calls += 1
            return result
        if fault is not None and self.is_counting and str(func) == fault.op:
            if self.calls == fault.nth:
                flip(_made(func, args, kwargs or {}, result, fault))
            self.calls += 1
        return result


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of a tensor's first element, of a weight that rounding does not swallow."""
    # By address, so that no op and no version counter shows it.
    ctypes.c_uint8.from_address(tensor.data_ptr() + 1).value ^= 1


def _made(func: Any, args: tuple[Any, ...], kwargs: Any, result: Any, fault: Fault) -> torch.Tensor:
    """Return the tensor that an event is of."""
    if func.namespace == "c10d":  # Not there before the wait; a test double may wait.
        works = [r for r in (result if isinstance(result, tuple) else (result,)) if _is_work(r)]
        for work in works:
            distributed.Work.unbox(work).wait()
    name, *path = fault.slot.split(".")
    names = [argument.name for argument in func._schema.arguments]
    if fault.kind != "result" and name in names:
        value: Any = (dict(zip(names, args, strict=False)) | kwargs)[name]
    else:
        value = result if isinstance(result, tuple) else (result,)
    for index in path:
        value = value[int(index)]
    assert isinstance(value, torch.Tensor)
    return value


def _is_work(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "Work" in str(value._type())


def train(model_kind: str, mode: Flip) -> None:
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
        mode.is_counting = True
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
        mode = Flip(fault if fault is not None and fault.rank == rank else None)
        distributed.barrier()
        with mode, fpdiff.record(path.with_suffix(".run"), level="op"):
            train(model_kind, mode)
        distributed.barrier()
    distributed.destroy_process_group()


def places(run: Path) -> list[Fault]:
    """Return every place of a recorded run where a bit can be flipped."""
    found = []
    for rank, record in fpdiff.open_run(run).ranks.items():
        sites = {row["site"]: row for row in record.sites().to_pylist()}
        counts: collections.Counter[str] = collections.Counter()
        nth: dict[tuple[Any, ...], int] = {}
        for step in range(STEPS):
            for event in record.events(step).to_pylist():
                site = sites[event["site"]]
                if site["op"] is None or site["kind"] == "uninitialised":
                    continue
                names = ("phase", "module", "call", "op", "members", "occurrence")
                key = (step, event["microbatch"], *(site[name] for name in names))
                if key not in nth:
                    nth[key] = counts[site["op"]]
                    counts[site["op"]] += 1
                # Integers say which bucket is which: another one ends the program.
                is_float = site["dtype"].startswith(("float", "bfloat"))
                if site["kind"] not in MADE or 0 in site["shape"] or not is_float:
                    continue
                found.append(
                    Fault(
                        rank,
                        nth[key],
                        site["op"],
                        site["kind"],
                        site["slot"],
                        step,
                        site["phase"],
                        site["module"],
                        site["occurrence"],
                    )
                )
    return found


def share_of(fault: Fault) -> str:
    """Return which of PHASES a fault counts under."""
    return "collective" if fault.op.startswith(("c10d.", "_c10d")) else fault.phase


def judge(a: Path, b: Path, fault: Fault) -> tuple[str, str]:
    """Compare a faulty run with the untouched one; return what came of it, and the details."""
    verdict = fpdiff.compare(a, b)
    if verdict.verdict != "diverged":
        return "missed", verdict.summary
    if len(verdict.origins) != 1:
        return "more than one origin", "; ".join(o.summary for o in verdict.origins[:4])
    origin = verdict.origins[0]
    for name in ("rank", "step", "phase", "module", "op", "occurrence"):
        if getattr(origin, name) != getattr(fault, name):
            return f"another {name}", origin.summary
    if share_of(fault) == "collective" and origin.class_ != "collective":
        return "another class", origin.class_
    receivers = {receiver.rank for receiver in verdict.receivers}
    differing = {row.rank for row in verdict.rank_steps} - {fault.rank}
    if receivers != differing:
        return "another receiver", f"{receivers} instead of {differing}"
    return "exact", origin.class_


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
