"""`fpdiff demo`: plant one wrong bit in a data-parallel run and let fpdiff find it."""

import os
import shlex
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer

from fpdiff.cli.keep import empty_folder
from fpdiff.store.errors import FpdiffError

TRAINER: Final = "train_gpt.py"

RECORD: Final = (
    f"fpdiff record --out {{out}} --level layer -- "
    f"torchrun --standalone --nproc-per-node 2 {TRAINER} --steps 8"
)

# Where each rank first differs. An operator is null at the layer rung and equals nothing in a join,
# hence no `op` in the list; and the trainer never draws from the generators that it does not seed.
FIRST_DIFFERENCES: Final = """
    select rank, step, phase, kind, module, slot
    from events a join events b
      using (rank, step, microbatch, phase, kind, module, call, occurrence, slot)
    where a.run = 'clean' and b.run = 'faulty' and a.digest <> b.digest
      and kind <> 'generator'
    qualify row_number() over (partition by rank order by step, a.seq) <= 3
    order by rank, step, a.seq
"""

# Each command as a user would type it, and the exit code that it has when the demo goes well.
COMMANDS: Final = (
    (shlex.split(RECORD.format(out="clean")), 0),
    (
        shlex.split(RECORD.format(out="faulty") + " --fault rank=1,step=3,module=blocks.1.mlp"),
        0,
    ),
    (["fpdiff", "compare", "clean", "faulty"], 1),
    (["fpdiff", "sql", "clean", "faulty", FIRST_DIFFERENCES], 0),
)


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Work in this new or empty folder and leave the runs there.",
        ),
    ] = None,
) -> None:
    """Plant one wrong bit and find it.

    Records a small GPT twice, the second time with a fault, and compares the two.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="fpdiff-demo-") as folder:
            _play(Path(folder))
        typer.echo("\nThe runs were temporary; `fpdiff demo --keep DIR` keeps them.")
        return
    _play(empty_folder(keep))
    typer.echo(f"\nThe runs clean and faulty, and {TRAINER}, are in {keep}.")


def _play(folder: Path) -> None:
    trainer = resources.files("fpdiff.examples").joinpath(TRAINER)
    (folder / TRAINER).write_text(trainer.read_text(encoding="utf-8"), encoding="utf-8")
    environment = _environment()
    for number, (command, expected) in enumerate(COMMANDS):
        typer.echo(("\n" if number else "") + "$ " + _typed(command))
        code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        if code != expected:
            raise FpdiffError(
                f"the demo failed: `{' '.join(command[:2])}` exited with {code}, not {expected}"
            )


def _typed(command: list[str]) -> str:
    """Return a command as one would type it; SQL keeps its lines, within double quotes."""
    return " ".join(f'"{word}"' if "\n" in word else shlex.quote(word) for word in command)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # Without it, torchrun looks this host's name up, which fails on many a laptop without network.
    environment.setdefault("PET_LOCAL_ADDR", "127.0.0.1")
    # More threads than one would only compete for the cores, and torchrun warns when it is unset.
    environment.setdefault("OMP_NUM_THREADS", "1")
    # The programs of the environment that runs this, which need not be the first on PATH.
    own = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join(filter(None, [own, environment.get("PATH", "")]))
    return environment
