"""Hints, strength, and the next command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import write_run_json
from verdicts import origin

from fpdiff.fingerprint.bisect.advice import hint, next_command, strength
from fpdiff.fingerprint.bisect.classify import COMPONENTS, OUTSIDE
from fpdiff.fingerprint.bisect.verdict import CLASSES, Origin
from fpdiff.store.run import Run


def run(root: Path, ranks: int = 2, **changes: Any) -> Run:
    write_run_json(root, **changes)
    (root / "ranks").mkdir()
    for rank in range(ranks):
        (root / "ranks" / f"rank={rank:05d}.json").write_text("{}")
    return Run.open(root)


def command(tmp_path: Path, rung: str, *origins: Origin, **changes: Any) -> str | None:
    found = next_command(run(tmp_path / "b", **changes), rung, list(origins))
    return found and found.replace(str(tmp_path), "")


def test_every_class_and_component_has_a_hint() -> None:
    for class_ in CLASSES:
        assert class_ == "state" or hint(class_, None)
    for component in sorted(COMPONENTS):
        assert hint("state", component) and hint("state", component + OUTSIDE)


def test_what_the_rung_layer_does_not_record_is_looked_at_first() -> None:
    def said(kind: str, rung: str = "layer") -> str:
        return hint("computation", None, kind=kind, rung=rung) or ""

    assert "labels" in said("loss") and "clipping" in said("reduced_gradient")
    assert "zero_grad" in said("local_gradient")
    assert "options are equal" in said("parameter") and said("parameter") == said("master")
    assert said("output") == said("loss", "step") == hint("computation", None)
    assert "requires_grad" in (hint("structure", None, kind="local_gradient") or "")
    assert "averages" in (hint("structure", None, phase="eval") or "")
    assert "checkpointed" in (hint("structure", None, phase="recompute") or "")
    assert "gives to the collective" in said("sent")
    assert "np.empty" in (hint("data", None, "aten.cat.default", kind="input") or "")
    added = hint("structure", None, "aten.add_.Tensor", kind="input", phase="backward")
    assert "zero_grad" in (added or "")


def test_a_collective_is_looked_at_where_the_program_calls_it() -> None:
    def said(class_: str, phase: str, has_line: bool = False) -> str:
        op = "c10d.allreduce_.default"
        return hint(class_, None, op, kind="sent", phase=phase, has_line=has_line) or ""

    assert "no_sync" in said("structure", "backward")
    assert "gradients go back" in said("structure", "backward", has_line=True)
    assert "a branch" in said("structure", "other") and "no_sync" not in said("structure", "other")
    assert "communication hook" in said("metadata", "backward")


@pytest.mark.parametrize(
    ("rung", "class_", "count", "says"),
    [
        ("layer", "state", 0, "compared directly"),
        ("layer", "data", 3, "compared directly"),
        ("layer", "structure", 3, "compared by name"),
        ("layer", "computation", 0, "nothing that it was made from is recorded"),
        ("layer", "computation", 1, "the event it read is equal"),
        ("layer", "computation", 2, "the 2 events it read are equal"),
        ("layer", "arguments", 0, "nothing that it was made from is recorded"),
        ("op", "arguments", 0, "recorded op by op"),
        ("op", "kernel", 2, "recorded op by op"),
        ("kernel", "kernel", 2, "recorded op by op"),
        ("kernel", "rng", 1, "recorded op by op"),
        ("step", "computation", 2, "inside the model is not recorded at rung step"),
    ],
)
def test_strength(rung: str, class_: str, count: int, says: str) -> None:
    assert says in strength(rung, class_, count)


def test_from_step_to_layer(tmp_path: Path) -> None:
    assert command(tmp_path, "step", origin(rank=1, step=3), origin(rank=0, step=4)) == (
        "fpdiff record --out /b.narrow --level layer --steps 3 -- python train.py"
    )


def test_one_rank_of_several_is_enough(tmp_path: Path) -> None:
    found = command(
        tmp_path,
        "layer",
        origin(rank=1, step=3),
        settings={"first_step": 2},
        command=["python", "a b.py"],
    )
    assert found == (
        "fpdiff record --out /b.narrow --level op --steps 3 --ranks 1 --first-step 2"
        " -- python 'a b.py'"
    )


@pytest.mark.parametrize(
    ("shift", "steps"),
    [(3, "--steps 3 --first-step 4"), (-1, "--steps 3"), (-2, "--steps 5 --first-step 1")],
)
def test_a_resumed_run_is_to_count_on_as_it_was_compared(
    tmp_path: Path, shift: int, steps: str
) -> None:
    resumed = run(tmp_path / "b", ranks=1, settings={"first_step": 1}).shifted(shift)
    found = next_command(resumed, "step", [origin(rank=0, step=3)]) or ""
    assert f"--level layer {steps} -- python" in found


def test_the_next_command_keeps_the_digest_unless_it_is_the_default(tmp_path: Path) -> None:
    told = [
        next_command(run(tmp_path / name, digest=name), "step", [origin()])
        for name in ("mix128", "xxh3-128")
    ]
    assert ["--digest mix128" in (text or "") for text in told] == [True, False]
    assert told[1] is not None and "--digest" not in told[1]


def test_there_may_be_no_further_command(tmp_path: Path) -> None:
    first = origin()
    b = run(tmp_path / "b", settings={"rehash": True})
    kernel = replace(first, class_="kernel", op="aten.tanh.default")
    assert next_command(b, "op", [kernel]) is None
    assert next_command(b, "step", []) is None
    assert next_command(b, "step", [first]) is not None
    assert next_command(b, "layer", [replace(first, class_="state")]) is None
    b = run(tmp_path / "d", settings={})
    assert "--level op --steps 3 --rehash --stats" in (next_command(b, "op", [kernel]) or "")
    known = replace(kernel, op="aten.index_put.default")
    assert next_command(b, "op", [known]) is None
    b = run(tmp_path / "c", command=None, settings=None)
    assert next_command(b, "step", [first]) is None


LAUNCHES = {"Triton launch, recorded at the rung kernel": 3}


@pytest.mark.parametrize(
    ("class_", "op", "level"),
    [
        ("kernel", "aten.tanh.default", "kernel"),
        ("kernel", "aten.index_put.default", None),
        ("computation", None, "kernel"),
        ("uninitialised", "aten.add.Tensor", "kernel"),
        ("unseen-producer", "aten.add.Tensor", "kernel"),
        ("data", "aten.add.Tensor", "kernel"),
        ("data", None, None),
        ("state", None, None),
        ("arguments", "aten.add.Tensor", None),
    ],
)
def test_from_op_to_kernel_where_a_launch_may_be_behind_it(
    tmp_path: Path, class_: str, op: str | None, level: str | None
) -> None:
    b = run(tmp_path / "b", settings={})
    (tmp_path / "b" / "ranks" / "rank=00001.json").write_text(json.dumps({"blind_spots": LAUNCHES}))
    found = next_command(b, "op", [replace(origin(rank=1, step=3), class_=class_, op=op)])
    if level is None:
        assert found is None
    else:
        assert f"--level {level} --steps 3 --ranks 1 -- " in (found or "")


def test_at_rung_kernel_only_rehash_goes_on(tmp_path: Path) -> None:
    launch = replace(origin(), class_="kernel", op="triton.scale")
    b = run(tmp_path / "b", settings={})
    assert "--level kernel --steps 3 --rehash --stats" in (
        next_command(b, "kernel", [launch]) or ""
    )
    b = run(tmp_path / "c", settings={"rehash": True})
    assert next_command(b, "kernel", [launch]) is None


def test_hints_for_launches() -> None:
    assert "atomic" in (hint("kernel", None, "triton.scale") or "")
    assert "autotuner" in (hint("arguments", None, "triton.scale") or "")
    assert "autotuner" not in (hint("arguments", None, "aten.add.Tensor") or "")


ON_CPU = {"environment": {"decides.devices": ["cpu"]}}


def test_what_varies_on_other_devices_is_no_excuse(tmp_path: Path) -> None:
    op = "aten.mm.default"  # Known to vary on cuda.
    assert "cuBLAS" in (hint("kernel", None, op) or "")
    assert "--rehash" in (hint("kernel", None, op, on_cpu=True) or "")
    assert "one thread" in (hint("kernel", None, "aten.index_put.default", on_cpu=True) or "")
    first = replace(origin(rank=1, step=3), class_="kernel", op=op)
    b = run(tmp_path / "b", settings={})
    assert next_command(b, "op", [first]) is None
    (tmp_path / "b" / "ranks" / "rank=00001.json").write_text(json.dumps(ON_CPU))
    assert "--rehash" in (next_command(Run.open(b.path), "op", [first]) or "")
