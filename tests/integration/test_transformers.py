"""Code that nobody here wrote: transformers' models and its Trainer, recorded unmodified."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import (
    PROGRAMS,
    PYTHON,
    Jobs,
    Preloaded,
    compare_json,
    parameters,
    rank_info,
    record_well,
)

SCRIPT = PROGRAMS / "train_transformers.py"
MODELS = ("gpt2", "llama")
PARAMETER = {
    "gpt2": "transformer.h.1.mlp.c_fc.weight",
    "llama": "model.layers.1.mlp.up_proj.weight",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> Iterator[Jobs]:
    """Job X records to folder/X and returns what was printed; so does `MODEL unrecorded`.

    `gpt2 a` is started as a user does, the others as forks and from code.
    """
    jobs, preloaded = Jobs(), Preloaded("transformers.trainer", "transformers.models")
    jobs.add("gpt2 a", record_output, folder / "gpt2 a", [*PYTHON, SCRIPT, "gpt2"])
    for model in MODELS:
        arms: dict[str, tuple[object, ...]] = {
            "unrecorded": (),
            "b": (),
            "data": ("--data-seed", 2),
            "state": ("--perturb", PARAMETER[model]),
        }
        # Llama has no dropout.
        arms |= {"seed": ("--seed", 1)} if model == "gpt2" else {"a": ()}
        for arm, options in arms.items():
            name = f"{model} {arm}"
            record = None if arm == "unrecorded" else {"path": str(folder / name)}
            output = folder / f"{name}.txt"
            arguments = (SCRIPT, model, *options)
            jobs.add(name, preloaded.run, *arguments, record=record, output=output)
    yield jobs
    jobs.close()
    preloaded.close()


def record_output(out: Path, command: list[object]) -> str:
    """Record a command and return what it printed; on stderr that is nothing of fpdiff's."""
    result = record_well(out, command)
    assert result.stderr.count("fpdiff") == 2, result.stderr  # Where it recorded, and what next.
    return result.stdout


def verdict_on(jobs: Jobs, folder: Path, model: str, arm: str) -> dict[str, Any]:
    """Wait for two runs and compare them."""
    assert jobs[f"{model} a"] and jobs[f"{model} {arm}"]
    return compare_json(folder / f"{model} a", folder / f"{model} {arm}")


@pytest.mark.parametrize("model", MODELS)
def test_twins(jobs: Jobs, folder: Path, model: str) -> None:
    verdict = verdict_on(jobs, folder, model, "b")
    assert verdict["verdict"] == "identical"
    assert verdict["compared"]["steps"] == [0, 19]
    assert verdict["compared"]["events"] > 20 * 100
    info = rank_info(folder / f"{model} a")
    assert info["finished"] and "stopped" not in info


@pytest.mark.parametrize("model", MODELS)
def test_unchanged_by_the_observer(jobs: Jobs, model: str) -> None:
    assert parameters(jobs[f"{model} a"]) == parameters(jobs[f"{model} unrecorded"])


@pytest.mark.parametrize("model", MODELS)
def test_other_data(jobs: Jobs, folder: Path, model: str) -> None:
    verdict = verdict_on(jobs, folder, model, "data")
    batches = [
        [line for line in jobs[f"{model} {arm}"].splitlines() if line.startswith("batch")]
        for arm in ("a", "data")
    ]
    step = next(n for n, (a, b) in enumerate(zip(*batches, strict=True)) if a != b)
    origin = verdict["origins"][0]
    assert (origin["step"], origin["class"], origin["phase"]) == (step, "data", "forward")
    assert verdict["first_step"] == verdict["effects"]["loss"] == step


@pytest.mark.parametrize("model", MODELS)
def test_a_perturbed_parameter(jobs: Jobs, folder: Path, model: str) -> None:
    verdict = verdict_on(jobs, folder, model, "state")
    module, _, name = PARAMETER[model].rpartition(".")
    assert verdict["num_origins"] == 1
    origin = verdict["origins"][0]
    assert (origin["step"], origin["class"], origin["component"]) == (0, "state", "parameter")
    assert (origin["module"], origin["slot"]) == (module, name)


def test_other_dropout(jobs: Jobs, folder: Path) -> None:
    verdict = verdict_on(jobs, folder, "gpt2", "seed")
    assert verdict["first_step"] == 0
    origin = verdict["origins"][0]
    assert (origin["step"], origin["class"], origin["phase"]) == (0, "rng", "forward")
    assert (origin["module"], origin["module_class"]) == ("transformer.drop", "Dropout")
