"""What a verdict looks like on a terminal of 80 columns, and in JSON.

The expected texts are tests/golden/*.txt. To write them anew, and read what changed in the diff:

    FPDIFF_REGENERATE_GOLDEN=1 python -m pytest tests/unit/bisect/test_report.py
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic_runs import Job, at, twist
from verdicts import compared, group, origin, rank_step, side, verdict

from fpdiff.cli.main import run as run_command
from fpdiff.cli.report import MAX_ENVIRONMENT, MAX_GROUPS, MAX_RANKS, render
from fpdiff.fingerprint.bisect.verdict import (
    Effects,
    EnvironmentDifference,
    Metric,
    Receiver,
    Verdict,
)

GOLDEN = Path(__file__).parents[2] / "golden"


def text_of(found: Verdict, **options: Any) -> str:
    file = io.StringIO()
    render(found, Console(file=file, width=80, highlight=False, **options))
    return file.getvalue()


def environment(key: str, a: Any, b: Any, **changes: Any) -> EnvironmentDifference:
    fields: dict[str, Any] = {"key": key, "a": a, "b": b, "ranks": [0, 1], "decides": True}
    return EnvironmentDifference(**(fields | changes))


IDENTICAL = Verdict(
    verdict="identical",
    summary="identical: 10,424 events on 2 ranks over 8 steps (steps 0-7), rung layer",
    a="runs/a",
    b="runs/b",
    compared=compared(),
)

RECEIVED = verdict(
    receivers=[
        Receiver(
            rank=0,
            step=3,
            from_=[1],
            via="the reduction of the gradients of blocks.0.attn.qkv.weight,"
            " blocks.0.attn.out.weight and 49 more",
        )
    ],
    rank_steps=[
        rank_step(rank=0, events=671, mismatched=188, carriers=187),
        rank_step(only_a=1, only_b=2),
    ],
    effects=Effects(loss=5, parameters=3, healed=False),
    metrics=[Metric(name="loss", step=5, rank=1, a=2.934522867202759, b=2.934523105621338)],
    environment=[
        environment("command", ["python", "train.py"], ["python", "train.py", "-x"], decides=False)
    ],
    next="fpdiff record --out runs/b.narrow --level layer --steps 3 --rehash --stats --ranks 1"
    " -- torchrun --nproc-per-node 2 train.py --steps 8",
)

STATE = [
    origin(
        rank=0,
        step=0,
        phase="init",
        module=f"blocks.{n}.attn",
        module_class="Attention",
        kind="parameter",
        slot="weight",
        class_="state",
        component="parameter",
        summary=f"parameter blocks.{n}.attn.weight differs",
        num_inputs=0,
        inputs=[],
        matched_before=n,
        strength="compared directly: nothing in the record comes before it",
        hint="the weights differ before the step: initialisation or a checkpoint",
    )
    for n in range(9)
]

OTHERS = [
    replace(STATE[0], kind="optimizer_state", slot=f"weight.{name}", component="optimizer state")
    for name in ("exp_avg", "exp_avg_sq", "step", "max_exp_avg_sq", "mu", "nu", "rho")
]

MANY = verdict(
    summary="rank 0, step 0, init: parameter blocks.0.attn.weight differs (state; the first of"
    " 1,234 origins)",
    origins=[*STATE, *OTHERS, replace(STATE[0], rank=1)],
    num_origins=1234,
    groups=[
        group(
            *range(9),
            rank=0,
            count=1209,
            of=2000,
            patterns={f"blocks.*.{name}.weight": n for n, name in enumerate("abcdefgh", 1)},
            hint="the runs start from other weights",
        ),
        *(group(n, rank=0, count=1 + (n == 15)) for n in range(9, 16)),
        group(16, count=2, patterns={"l1.weight": 2}),
    ],
    rank_steps=[
        rank_step(rank=n, step=0, steps_matched=0, events=1000, mismatched=900, carriers=283)
        for n in range(12)
    ],
    compared=compared(ranks=list(range(12)), steps=[0, 0], num_steps=1, events=1),
    effects=Effects(loss=0, parameters=0, healed=False),
    environment=[
        environment("threads", 1, 8),
        environment("torch", "2.13.0", "2.12.1", ranks=[3, 4, 7]),
        *(environment("hostname", f"a{n}", f"b{n}", ranks=[n], decides=False) for n in range(9)),
        *(environment(f"key{n}", 1, 2, decides=False) for n in range(MAX_ENVIRONMENT)),
    ],
)

SIDES = verdict(
    summary="rank 1, step 3, forward: output out.0 of the root module exists only in B, not in A"
    " (structure)",
    compared=compared(ranks=[1]),
    origins=[
        origin(
            module="",
            module_class="GPT",
            call=2,
            microbatch=1,
            class_="structure",
            summary="output out.0 of the root module exists only in B, not in A",
            a=None,
            b=side(
                "31f684f9-0d48-6a3f-0000-000000000002",
                value=float("nan"),
                l2=1.5,
                absmax=0.25,
                nonfinite=3,
            ),
            inputs=[f"forward output blocks.{n}.out.0" for n in range(6)],
            num_inputs=1000,
            count=2,
            matched_before=1,
            evidence=["only B evaluated the model in this step", "another thing"],
            strength="the two sequences of events, compared by name",
            hint=None,
        )
    ],
    rank_steps=[rank_step(steps_matched=1, only_b=7, moved=2, mismatched=7, carriers=0)],
    effects=Effects(loss=None, parameters=None, healed=True),
    blind_spots=[
        {"reason": "sparse tensor", "a": 12, "b": 12},
        {"reason": "thread not followed", "a": 0, "b": 1},
    ],
    notes=[
        "A has steps 0-9, B has steps 0-7: compared over steps 0-7",
        "B's record of rank 1 was cut short: its complete steps are compared",
    ],
)

INCOMPARABLE = Verdict(
    verdict="incomparable",
    summary="the two runs have no complete step in common: compare or record the same steps"
    " (--steps, --first-step)",
    a="runs/a",
    b="runs/b",
)

NOTED = replace(
    IDENTICAL,
    metrics=[Metric(name="tokens_per_second", step=0, rank=0, a=float("nan"), b=None)],
    environment=[environment("threads", 1, 8), environment("pwd", "/a", "/b", decides=False)],
    blind_spots=[{"reason": "sparse tensor", "a": 12, "b": 12}],
    notes=["only B evaluated the model in steps 1, 3; nothing else differs there"],
)

CASES = {
    "identical": IDENTICAL,
    "identical-with-notes": NOTED,
    "diverged-with-receivers": RECEIVED,
    "diverged-with-many-origins": MANY,
    "diverged-with-notes-and-blind-spots": SIDES,
    "incomparable": INCOMPARABLE,
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_as_expected(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = text_of(CASES[name])
    if os.environ.get("FPDIFF_REGENERATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_the_terminal_but_the_command(name: str) -> None:
    lines = text_of(CASES[name]).splitlines()
    assert all(len(line) <= 80 or "fpdiff record" in line for line in lines)
    assert lines[0].startswith(CASES[name].verdict)


def test_long_lists_are_cut() -> None:
    text = text_of(MANY)
    assert text.count("class        state") == MAX_GROUPS + 1
    words = " ".join(text.split())
    assert "1,209 of 2,000 likewise: blocks.*.a.weight, blocks.*.b.weight (2)," in words
    assert "and 1,188 more" in words and "2 of 40 likewise: l1.weight (2)" in words
    assert text.count("\nrank ") == MAX_RANKS
    assert "and 4 more ranks" in text and "and 4 more origins in 3 groups on this rank" in text
    assert "and 3 more differences" in text
    assert "hostname: A a0, B b0 (rank 0); other values on 8 more ranks" in text


def test_names_from_the_disk_cannot_drive_the_terminal() -> None:
    bad = origin(module="[red]a\x1b[31m", summary="x[bold]\x07")
    text = text_of(verdict(origins=[bad]), force_terminal=True, color_system=None)
    assert "[red]a" in text and "x[bold]" in text
    assert "\x07" not in text and "\x1b[31m" not in text


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = run_command(["compare", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_answers_like_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    b = Job(ranks=[0, 1], edit=at(2, 1, twist("batch"))).arm(tmp_path / "b")
    assert command(capsys, a, a)[0] == 0
    code, out, _ = command(capsys, a, b)
    assert code == 1
    assert out.startswith("diverged: rank 1, step 2, forward: the batch")
    assert command(capsys, a, b, "--steps", "0:2")[0] == 0
    assert command(capsys, a, b, "--ranks", "0", "--steps", "0-9")[0] == 2
    code, _, err = command(capsys, a, tmp_path / "none")
    assert code == 2 and "no run at" in err


def test_the_json_is_valid_whatever_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    a = Job().arm(tmp_path / "a")
    nan = at(2, 0, lambda events: twist("loss")(events))
    b = Job(edit=nan, environment={"decides.x": float("inf")}).arm(tmp_path / "b")
    code, out, _ = command(capsys, a, b, "--json")
    found = json.loads(out, parse_constant=refuse)
    assert (code, found["verdict"], found["environment"][0]["b"]) == (1, "diverged", "Infinity")


def test_what_cannot_be_compared_is_said_in_json_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Job(steps=[0]).arm(tmp_path / "a")
    b = Job(steps=[5]).arm(tmp_path / "b")
    code, out, _ = command(capsys, a, b, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["origins"]) == (2, "incomparable", [])
    assert "no complete step in common" in found["summary"]
    code, out, err = command(capsys, a, b)
    assert (code, out) == (2, "") and "no complete step in common" in err


def test_numbers_that_json_does_not_know_become_text() -> None:
    found = replace(
        IDENTICAL,
        metrics=[Metric(name="m", step=0, rank=0, a=float("-inf"), b=float("nan"))],
        environment=[environment("x", {"key_": float("inf")}, (1, 2))],
    ).to_dict()
    assert (found["metrics"][0]["a"], found["metrics"][0]["b"]) == ("-Infinity", "NaN")
    # Only the verdict's own names lose the underscore that keeps them off Python's keywords.
    assert found["environment"][0]["a"] == {"key_": "Infinity"}
    assert found["environment"][0]["b"] == [1, 2]
    assert "class" in RECEIVED.to_dict()["origins"][0]
    assert RECEIVED.to_dict()["receivers"][0]["from"] == [1]


def test_exit_codes() -> None:
    codes = {case.verdict: case.exit_code for case in CASES.values()}
    assert codes == {"identical": 0, "diverged": 1, "incomparable": 2}
