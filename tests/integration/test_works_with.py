"""What fpdiff works with, each tried by a real training; docs/reference/works-with.md shows it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PYTHON, TESTS, Jobs, Preloaded, record
from works_with import FOLDER, Recordings, Row, table

PAGE = TESTS.parent / "docs" / "reference" / "works-with.md"
BEGIN, END = "<!-- works with -->", "<!-- /works with -->"

COMPILED = "a compiled region is one site, what is inside it is a blind spot"

ROWS = [
    Row(
        title="plain loop",
        script="zoo.py",
        case="plain_loop",
        op="aten.addmm.default",
        module="inp",
    ),
    Row(
        title="`transformers.Trainer`",
        script="frameworks.py",
        case="trainer",
        op="aten.mm.default",
        module="model.layers.1.mlp.up_proj",
    ),
    Row(
        title="Accelerate",
        script="frameworks.py",
        case="accelerate",
        op="aten.addmm.default",
        module="0",
    ),
    Row(
        title="Lightning `Trainer`",
        script="frameworks.py",
        case="lightning",
        op="aten.addcdiv_.default",
        module="0",
        phase="optimizer",
    ),
    Row(
        title="LoRA with PEFT",
        script="frameworks.py",
        case="lora",
        op="aten.mm.default",
        module="base_model.model.model.layers.1.self_attn.q_proj.lora_A.default",
    ),
    Row(
        title="DDP",
        script="ranks.py",
        case="ddp",
        op="aten.addmm.default",
        module="1.up",
        rank=1,
        num_ranks=2,
    ),
    Row(
        title="FSDP2",
        script="ranks.py",
        case="fsdp2",
        op="aten.addmm.default",
        module="1.up",
        rank=1,
        num_ranks=2,
    ),
    Row(
        title="FSDP2, `reshard_after_forward=False`",
        script="ranks.py",
        case="fsdp2_no_reshard",
        op="aten.addmm.default",
        module="1.up",
        rank=1,
        num_ranks=2,
    ),
    Row(
        title="FSDP2, mixed precision",
        script="ranks.py",
        case="fsdp2_mixed_precision",
        op="aten.addmm.default",
        module="1.up",
        rank=1,
        num_ranks=2,
    ),
    Row(
        title="tensor parallel with DTensor, sequence parallel",
        script="ranks.py",
        case="tensor_parallel",
        op="aten.addmm.default",
        module="1.up",
        rank=1,
        num_ranks=2,
    ),
    Row(
        title="pipeline parallel, 1F1B",
        script="ranks.py",
        case="pipeline_1f1b",
        op="aten.addmm.default",
        module="0.up",
        rank=0,
        num_ranks=2,
        says="rehearsal of a pipeline stage",
    ),
    Row(
        title="pipeline parallel, interleaved 1F1B",
        script="ranks.py",
        case="pipeline_interleaved",
        op="aten.addmm.default",
        module="~Sequential.0.up",
        rank=0,
        num_ranks=2,
        says="rehearsal of a pipeline stage",
    ),
    Row(
        title="DataLoader workers, `fork`",
        script="workers.py",
        case="fork",
        op="aten.mm.default",
        module="",
        phase="backward",
    ),
    Row(
        title="DataLoader workers, `spawn`",
        script="workers.py",
        case="spawn",
        op="aten.mm.default",
        module="",
        phase="backward",
    ),
    Row(
        title="DataLoader workers, `forkserver`",
        script="workers.py",
        case="forkserver",
        op="aten.mm.default",
        module="",
        phase="backward",
    ),
    Row(
        title="`torch.compile`, whole model, dynamic shapes",
        script="compiled.py",
        case="whole",
        as_op="inductor.graph",
        module="",
        says="compiled code: its operators and kernels",
        note=COMPILED,
    ),
    Row(
        title="`torch.compile`, submodules",
        script="compiled.py",
        case="submodules",
        as_op="inductor.graph",
        module="inner",
        says="compiled code: its operators and kernels",
        note=COMPILED,
    ),
    Row(
        title="`torch.compile` of an optimizer's step",
        script="compiled.py",
        case="optimizer",
        as_op="works_with.scale.default",
        module="1",
        says="compiled code: its operators and kernels",
        has_hooks=False,
        note="no hook fires in such a step: what it writes tells when it ran, and `fpdiff verify` "
        "cannot watch it",
    ),
    Row(
        title="activation checkpointing",
        script="zoo.py",
        case="checkpointing",
        op="aten.addmm.default",
        module="middle.inp",
        phase="recompute",
    ),
    Row(
        title="activation checkpointing, reentrant",
        script="zoo.py",
        case="checkpointing_reentrant",
        op="aten.addmm.default",
        module="middle.inp",
        phase="recompute",
    ),
    Row(
        title="autocast and `GradScaler`, skipped steps",
        script="zoo.py",
        case="autocast_and_scaler",
        op="aten.addmm.default",
        module="inp",
    ),
    Row(
        title="gradient accumulation, clipping",
        script="zoo.py",
        case="accumulation_and_clipping",
        op="aten._foreach_mul_.Tensor",
        module="",
        phase="other",
        at_layer={"phase": "optimizer", "module": "inp"},
    ),
    Row(
        title="EMA",
        script="zoo.py",
        case="averages",
        op="aten._foreach_lerp_.Scalar",
        module="",
        phase="other",
        step=2,
        at_layer={"phase": "init", "module": "~AveragedModel.module.inp"},
    ),
    Row(
        title="several optimizers",
        script="zoo.py",
        case="two_optimizers",
        op="aten.addmm.default",
        module="~Net.inp",
    ),
    Row(
        title="for-loop, foreach and fused optimizers",
        script="zoo.py",
        case="adamw",
        op="aten._fused_adamw_.default",
        module="",
        phase="optimizer",
        step=7,
        at_layer={"module": "~Net.2.inp"},
    ),
    Row(title="LBFGS, closures", script="zoo.py", case="lbfgs", op="aten.addmm.default", module=""),
    Row(
        title="tied weights, one module called many times",
        script="zoo.py",
        case="shared_modules",
        op="aten.addmm.default",
        module="layer",
    ),
    Row(
        title="outputs as dataclass, dict, tuple, generator, None",
        script="zoo.py",
        case="kinds_of_output",
        op="aten.addmm.default",
        module="linear",
    ),
    Row(
        title="views of outputs, in-place code on them",
        script="zoo.py",
        case="in_place",
        op="aten.relu_.default",
        module="act",
    ),
    Row(
        title="`torch.func.vmap` in forward",
        script="zoo.py",
        case="vmap",
        op="aten.mm.default",
        module="layer",
        at_layer={"module": ""},
        says="functorch transform",
        note="a module called under `vmap` is not seen at `layer`, its caller is",
    ),
    Row(
        title="double backward",
        script="zoo.py",
        case="double_backward",
        op="aten.tanh_backward.default",
        module="1",
        phase="backward",
    ),
    Row(
        title="custom autograd functions",
        script="zoo.py",
        case="own_functions",
        op="aten.mul.Tensor",
        module="",
        phase="other",
        at_layer={"phase": "forward"},
    ),
    Row(
        title="evaluation between training steps",
        script="zoo.py",
        case="evaluation_between",
        op="aten.linear.default",
        module="inp",
        phase="eval",
    ),
    Row(
        title="generation between training steps",
        script="frameworks.py",
        case="generation",
        op="aten.mm.default",
        module="model.layers.1.mlp.up_proj",
        phase="eval",
    ),
    Row(
        title="fused fast path of `TransformerEncoderLayer`",
        script="zoo.py",
        case="fused_encoder_layer",
        op="aten._transformer_encoder_layer_fwd.default",
        module="0",
        phase="eval",
        step=3,
    ),
]


OTHERS = {
    "`torch.compile` of a function that calls the model": (
        "no",
        "no module is called outside of compiled code: `fpdiff record` says so and exits with 2",
    ),
    "Megatron Core": ("not tested", "it is not among the test dependencies"),
    "DeepSpeed": (
        "not tested",
        "by hand with 0.19.8, ZeRO 0 to 3 on two ranks: twins identical, planted differences named",
    ),
}


@pytest.fixture(scope="module")
def recordings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Recordings]]:
    """Begin to record the rows that tests were selected for."""
    jobs = Jobs()
    preloaded = {
        "frameworks.py": Preloaded(
            "accelerate", "lightning", "peft", "transformers.trainer", "transformers.models.llama"
        ),
        "ranks.py": Preloaded("torch.distributed.pipelining", "torch.distributed.tensor.parallel"),
        "compiled.py": Preloaded("torch._inductor.compile_fx"),
    }
    # Compiled once, and found by the others; no processes to compile in.
    cache = tmp_path_factory.mktemp("inductor")
    env = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": 1}
    found = {}
    selected = {item.name for item in request.session.items}
    for row in ROWS:
        if not selected & {f"test_a_row[{row.name}]", "test_the_page_shows_what_was_found"}:
            continue
        folder = tmp_path_factory.mktemp(row.name.replace(" ", "-"))
        process = preloaded.get(row.script, preloaded["ranks.py"])
        found[row.name] = Recordings(row, folder, jobs, process, env)
    yield found
    jobs.close()
    for process in preloaded.values():
        process.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row(row: Row, recordings: dict[str, Recordings]) -> None:
    found = recordings[row.name].shortcomings
    assert found.keys() == row.no.keys(), found


def test_a_model_inside_a_compiled_function_is_refused(tmp_path: Path) -> None:
    result = record(tmp_path / "run", [*PYTHON, FOLDER / "compiled.py", "function"])
    assert result.returncode == 2 and "counted: stats unique_graphs 1" in result.stdout
    assert "without running a torch.nn.Module outside of compiled code" in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_page_shows_what_was_found(recordings: dict[str, Recordings]) -> None:
    """FPDIFF_REGENERATE_GOLDEN=1 writes it anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = table([recordings[row.name] for row in ROWS], OTHERS)
    page = "\n".join([before + BEGIN, *lines, END + after])
    if os.environ.get("FPDIFF_REGENERATE_GOLDEN"):
        PAGE.write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8")
