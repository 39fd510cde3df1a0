"""Runs of train_gpt.py on two ranks that several files of tests look at; recorded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import FPDIFF, TORCHRUN, TRAIN_GPT, Jobs, Preloaded, record_well, run

GPT_STEPS = 8
FAULT = "rank=1,step=3,module=blocks.1.mlp"
# In a still smaller net the fault is rounded away before the loss.
GPT = ["--steps", GPT_STEPS, "--d-model", 64, "--layers", 3, "--heads", 2]


@pytest.fixture(scope="session")
def gpt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt")


@pytest.fixture(scope="session")
def gpt_jobs(gpt_folder: Path) -> Iterator[Jobs]:
    """Job X records to gpt_folder/X and returns what was printed; so does `unrecorded`.

    `demo` is one too; it and `a` are started as a user does, the others as forks and from code.
    """
    jobs, preloaded = Jobs(), Preloaded()

    def fork(name: str, *options: object, record: dict[str, object] | None) -> None:
        record = record and {"path": str(gpt_folder / name), **record}
        jobs.add(
            name,
            preloaded.run_ranks,
            *(TRAIN_GPT, *GPT, *options),
            output=gpt_folder / f"{name}.txt",
            record=record,
        )

    jobs.add("demo", run, [*FPDIFF, "demo", "--keep", gpt_folder / "demo"])
    jobs.add("a", lambda: record_well(gpt_folder / "a", [*TORCHRUN, TRAIN_GPT, *GPT]).stdout)
    fork("unrecorded", record=None)
    fork("b", record={"level": "layer", "stats": True, "rehash": True})
    fork("faulty", "--fault", FAULT, record={"level": "layer"})
    fork("step a", record={"level": "step"})
    fork("step faulty", "--fault", FAULT, record={"level": "step"})
    yield jobs
    jobs.close()
    preloaded.close()
