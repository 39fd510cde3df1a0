"""mix128 where it is to work: in Triton's kernels, and over the shards of distributed tensors."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from processes import PROGRAMS, PYTHON, Jobs, Preloaded, run

FORMS = PROGRAMS / "mix128_forms.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mix128")


@pytest.fixture(scope="module", autouse=True)
def jobs(folder: Path) -> Iterator[Jobs]:
    jobs, preloaded = Jobs(), Preloaded("torch.distributed.tensor", trains=False)
    if sys.platform == "linux":  # Triton has wheels for Linux only.
        env = {"TRITON_CACHE_DIR": folder / "cache", "TRITON_DEFAULT_FP_FUSION": 0}
        script = PROGRAMS / "mix128_compiled.py"
        jobs.add("forms", preloaded.run, FORMS, "--single", 10, output=folder / "forms.txt")
        recorded = PROGRAMS / "mix128_recorded.py"
        jobs.add("recorded", preloaded.run, recorded, folder, output=folder / "recorded.txt")
        jobs.add("compiled", preloaded.run, script, 90, output=folder / "compiled.txt", env=env)
    script = PROGRAMS / "mix128_shards.py"
    jobs.add("shards", preloaded.run_ranks, script, output=folder / "shards.txt", num_ranks=4)
    yield jobs
    jobs.close()
    preloaded.close()


linux = pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux only")


@linux
def test_numpy_torch_and_triton_agree_on_a_thousand_tensors(jobs: Jobs) -> None:
    assert jobs["forms"] == "equal 1000 of 1000\n"


@linux
def test_the_kernels_compile_for_a_device_and_use_no_atomics(jobs: Jobs) -> None:
    lines = jobs["compiled"].splitlines()
    assert len(lines) == 7 and all(line.endswith("True") for line in lines), lines


@linux
def test_the_kernels_that_digest_are_not_taken_for_the_programs_own(jobs: Jobs) -> None:
    nothing = [f"{level} [] {{}} None" for level in ("op", "kernel")]
    op, kernel = nothing
    *lines, together = jobs["recorded"].splitlines()
    assert lines == [*nothing, op, "True", kernel, "True", op]
    # What the step starts from, its gradients, and what the optimizer made.
    assert together == "True [2, 2, 2]"


def test_the_sums_of_shards_add_up_to_those_of_the_whole(jobs: Jobs) -> None:
    told = dict(line.split(": ", 1) for line in jobs["shards"].splitlines())
    refused = {name: text for name, text in told.items() if text.startswith("refused")}
    assert len(told) == 21
    assert told.pop("one element differs") == "unequal"
    assert {text for name, text in told.items() if name not in refused} == {"equal"}
    assert refused == {
        "columns of half a lane": "refused: [0:4, 0:1] of [4, 4] does not begin and end between"
        " lanes of 8 bytes: runs of 1 elements of 4 bytes",
        "rows that do not fill lanes": "refused: [0:1, 0:3] of [4, 3] does not begin and end"
        " between lanes of 8 bytes: runs of 3 elements of 2 bytes",
        "sums": "refused: the placement Partial leaves no box of the whole on a rank",
        "strided": "refused: the placement _StridedShard leaves no box of the whole on a rank",
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernels_on_a_device_agree_with_the_definition() -> None:
    result = run([*PYTHON, FORMS, "--device", "cuda", "--single", 1000])
    assert result.stdout == "equal 1000 of 1000\n", result.stderr
