"""Flags that a program throws in its middle, or for a part of each step."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import hide_the_past, info, mlp, recorded, train
from torch.nn.attention import SDPBackend, sdpa_kernel

import fpdiff
from fpdiff.fingerprint.record.job import switches
from fpdiff.fingerprint.record.job.switches import Switches, describe

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture(autouse=True)
def switched_back() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch._C._set_mkldnn_enabled(True)
    torch.set_float32_matmul_precision("highest")


def notes(path: Path, key: str) -> list[tuple[int, str, Any]]:
    return [
        (note["step"], note["phase"], note["value"])
        for note in info(path)["switched"]
        if note["key"] == f"decides.{key}"
    ]


SWITCHED: list[tuple[str, Callable[[], object], Any]] = [
    ("threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1), 2),
    ("deterministic_algorithms", lambda: torch.use_deterministic_algorithms(True), True),
    ("float32_matmul_precision", lambda: torch.set_float32_matmul_precision("medium"), "medium"),
    ("mkldnn", lambda: torch._C._set_mkldnn_enabled(False), False),
]


@pytest.mark.parametrize(("key", "throw", "value"), SWITCHED, ids=[row[0] for row in SWITCHED])
def test_what_is_switched_between_steps_is_noted_once_for_each_phase(
    tmp_path: Path, key: str, throw: Callable[[], object], value: Any
) -> None:
    torch.set_num_threads(1)
    hide_the_past()
    with recorded(tmp_path / "r", level="step"):
        train(mlp(), steps=4, each=lambda step: throw() if step == 2 else None)
    assert notes(tmp_path / "r", key) == [
        (2, phase, value) for phase in ("forward", "backward", "optimizer")
    ]


@contextmanager
def without_mkldnn() -> Iterator[None]:
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


CONTEXTS: list[tuple[str, Callable[[], AbstractContextManager[Any]], Any]] = [
    ("sdpa_backends", lambda: sdpa_kernel(SDPBackend.MATH), "math"),
    ("mkldnn", without_mkldnn, False),
]


@pytest.mark.parametrize(("key", "context", "value"), CONTEXTS, ids=[row[0] for row in CONTEXTS])
def test_what_is_switched_around_forwards_is_noted_of_them_alone(
    tmp_path: Path, key: str, context: Callable[[], AbstractContextManager[Any]], value: Any
) -> None:
    hide_the_past()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(tmp_path / "r"):
        for _ in range(3):
            with context():
                loss = model(X).square().mean()
            loss.backward()
            optimizer.step()
    assert notes(tmp_path / "r", key) == [(0, "forward", value)]


def test_what_nobody_switches_is_not_noted(tmp_path: Path) -> None:
    hide_the_past()
    with recorded(tmp_path / "r"):
        train(mlp(), steps=3)
    assert info(tmp_path / "r")["switched"] == []


def test_what_was_switched_is_known_of_a_run_that_is_killed_later(tmp_path: Path) -> None:
    hide_the_past()
    seen: list[list[tuple[int, str, Any]]] = []

    def each(step: int) -> None:
        if step == 1:
            torch.use_deterministic_algorithms(True)
        if step == 2:
            seen.append(notes(tmp_path / "r", "deterministic_algorithms"))

    with recorded(tmp_path / "r"):
        train(mlp(), steps=3, each=each)
    assert [note[1] for note in seen[0]] == ["forward", "backward", "optimizer"]


@pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch before 2.9 has one name only"
)
def test_a_precision_that_has_a_new_name_only_stops_no_recording(tmp_path: Path) -> None:
    hide_the_past()
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]

    def each(step: int) -> None:
        if step == 1:
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]

    try:
        with recorded(tmp_path / "r"):
            train(mlp(), steps=3, each=each)
            assert describe()["decides.float32_matmul_precision"] is None
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before  # type: ignore[attr-defined]
    assert info(tmp_path / "r")["finished"] and "stopped" not in info(tmp_path / "r")
    [(step, phase, value), *_] = notes(tmp_path / "r", "fp32_precision")
    assert (step, phase) == (1, "forward") and "mkldnn.matmul bf16" in value


def test_switches_thrown_very_often_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "MAX_NOTES", 3)
    looks = Switches()
    for step in range(5):
        torch.use_deterministic_algorithms(step % 2 == 0)
        looks.look("forward", "", step)
    assert looks.num_lost == 2
    assert [note["step"] for note in looks.notes(describe())] == [1, 2]


def test_runs_say_where_a_switch_differs(tmp_path: Path) -> None:
    """From recorded runs to a verdict: the step, and that it may explain what differs there."""
    for name, thrown in (("a", False), ("b", True), ("c", False)):
        hide_the_past()
        model = mlp()

        def each(step: int, thrown: bool = thrown) -> None:
            if step == 2 and thrown:
                torch.use_deterministic_algorithms(True)

        with recorded(tmp_path / name):
            train(model, steps=4, each=each)
        torch.use_deterministic_algorithms(False)
    twins = fpdiff.compare(tmp_path / "a", tmp_path / "c")
    assert twins.verdict == "identical" and not [d for d in twins.environment if d.decides]
    found = fpdiff.compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "identical"
    [difference] = [d for d in found.environment if d.decides]
    assert difference.key == "deterministic_algorithms"
    assert (difference.a, difference.b) == (False, True)
    assert (difference.since, difference.until, difference.phases) == (2, None, [])
