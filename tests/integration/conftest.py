"""Runs of train_gpt.py on two ranks that several files of tests look at; recorded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import FPDIFF, TORCHRUN, TRAIN_GPT, Jobs, record_well, run

GPT_STEPS = 8
FAULT = "rank=1,step=3,module=blocks.1.mlp"
# In a still smaller net the fault is rounded away before the loss.
GPT = [*TORCHRUN, TRAIN_GPT, "--steps", GPT_STEPS, "--d-model", 64, "--layers", 3, "--heads", 2]


@pytest.fixture(scope="session")
def gpt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt")


@pytest.fixture(scope="session")
def gpt_jobs(gpt_folder: Path) -> Iterator[Jobs]:
    """Job X records to gpt_folder/X; `unrecorded` and `demo` are jobs too."""
    jobs = Jobs()
    faulty = [*GPT, "--fault", FAULT]
    jobs.add("unrecorded", run, GPT)
    jobs.add("a", record_well, gpt_folder / "a", GPT)
    jobs.add("b", record_well, gpt_folder / "b", GPT, "--stats", "--rehash")
    jobs.add("faulty", record_well, gpt_folder / "faulty", faulty)
    jobs.add("step a", record_well, gpt_folder / "step a", GPT, "--level", "step")
    jobs.add("step faulty", record_well, gpt_folder / "step faulty", faulty, "--level", "step")
    jobs.add("demo", run, [*FPDIFF, "demo", "--keep", gpt_folder / "demo"])
    yield jobs
    jobs.close()
