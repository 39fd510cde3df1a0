"""Kinds of divergence from public reports (tests/cases), as far as each rung tells them.

cases/check.py runs the same through the command line, in minutes: here each script is a fork of a
process that has imported torch already, and recorded from code. All are recorded at the rung op;
at the rung layer those of which it has something else to tell.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import PYTHON, TESTS, Jobs, Preloaded, parameters, record_well

import fpdiff

CASES = TESTS / "cases"
EXPECTED = json.loads((CASES / "expect.json").read_text())

# Those that this rung must get right in full.
IN_FULL = {"06", "10", "12", "18", "20", "21", "29", "32", "34", "75", "78"}

# The others' first origin: ops and what only ops can tell apart are not known here.
AT_LAYER: dict[str, dict[str, Any]] = {
    "01": {"rank": 0, "phase": "forward", "module": "agg", "class": "computation"},
    "03": {"step": 0, "rank": 0, "phase": "backward", "module": "norm", "class": "environment"},
    "09": {"step": 0, "rank": 0, "phase": "recompute", "module": "blk.drop", "class": "rng"},
    "26": {"rank": 0, "phase": "forward", "module": "pad", "class": "computation"},
    "27": {"step": 2, "rank": 0, "phase": "forward", "module": "l1"},
    "31": {"step": 1, "rank": 0, "phase": "forward", "module": ""},
    "43": {"step": 2, "rank": 0, "phase": "forward", "module": "drop", "class": "rng"},
    "45": {"step": 2, "rank": 1, "module": "bn", "class": "state", "component": "buffer"},
    "46": {"step": 0, "rank": 0, "phase": "optimizer", "module": "norm", "class": "collective"},
    "61": {"step": 1, "rank": 0, "module": "bn", "class": "state", "component": "buffer"},
    "72": {"step": 0, "rank": 0, "phase": "forward", "module": "att", "class": "computation"},
    "73": {"step": 1, "rank": 0, "phase": "init", "module": "~Sequential.0", "class": "state"},
    "74": {"step": 2, "rank": 0, "phase": "forward", "class": "structure"},
    "76": {"step": 0, "rank": 0, "phase": "backward", "module": "cut", "class": "computation"},
    "77": {"step": 0, "rank": 0, "phase": "optimizer", "class": "collective"},
}
HARMLESS = {"24", "67"}  # Only collectives and ops differ, which this rung does not see.
NEEDS_TWO_CORES = "01"  # And luck: a race of threads that did not happen is no difference.

HANGS_ON_MALLOC = "26"  # In a fork the first steps may get equal garbage in both arms.
IN_NEW_PROCESSES = "42"  # Python reads its hash seed once, when it starts.

NAMES = {
    "layer": [
        name for name in sorted(EXPECTED) if name[:2] in IN_FULL | AT_LAYER.keys() | HARMLESS
    ],
    "op": sorted(EXPECTED),
}
OBSERVED = [
    (name, level)
    for level, names in NAMES.items()
    for name in names
    if "observer" in EXPECTED[name]
]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Record both arms of every case; a job's result is its folder with A, B and their output."""
    jobs, preloaded = Jobs(), Preloaded()
    for level, names in NAMES.items():
        for name in names:
            spec, folder = EXPECTED[name], tmp_path_factory.mktemp(name[:2])
            jobs.add(f"{level} {name}", _run_arms, CASES / name, spec, folder, preloaded, level)
    yield jobs
    jobs.close()
    preloaded.close()


def _run_arms(
    script: Path, spec: dict[str, Any], folder: Path, preloaded: Preloaded, level: str
) -> Path:
    run = preloaded.run_ranks if spec.get("launch") == "torchrun2" else preloaded.run
    for arm in "AB":
        env = {"CASE_RUN": arm, "CASE_DIR": folder, **spec.get(f"env_{arm.lower()}", {})}
        if script.name[:2] == IN_NEW_PROCESSES:
            record_well(folder / arm, [*PYTHON, script], "--level", level, env=env)
            continue
        options = _options(spec.get(f"record_{arm.lower()}", []))
        options |= {"path": str(folder / arm), "level": level}
        run(script, env=env, record=options, output=folder / f"{arm}.txt")
        if arm in spec.get("observer", ""):
            run(script, env=env, output=folder / f"unrecorded {arm}.txt")
    return folder


def _options(words: list[str]) -> dict[str, Any]:
    """Return what the command line's options are called in code."""
    known: dict[tuple[str, ...], dict[str, Any]] = {
        (): {},
        ("--rehash",): {"rehash": True},
        ("--first-step", "4"): {"first_step": 4},
    }
    return known[tuple(words)]


@pytest.mark.parametrize("name", NAMES["layer"])
def test_case(jobs: Jobs, name: str) -> None:
    folder, number = jobs[f"layer {name}"], name[:2]
    verdict = fpdiff.compare(folder / "A", folder / "B").to_dict()
    if number in HARMLESS:
        assert verdict["verdict"] == "identical"
    elif number in IN_FULL:
        _check_in_full(verdict, EXPECTED[name])
    elif number != NEEDS_TWO_CORES or verdict["verdict"] != "identical":
        assert verdict["verdict"] == "diverged"
        origin = verdict["origins"][0]
        assert origin | AT_LAYER[number] == origin, origin
        assert origin["op"] is None


@pytest.mark.parametrize("name", NAMES["op"])
def test_case_by_its_operator(jobs: Jobs, name: str) -> None:
    folder = jobs[f"op {name}"]
    verdict = fpdiff.compare(folder / "A", folder / "B").to_dict()
    if name[:2] != NEEDS_TWO_CORES or verdict["verdict"] != "identical":
        spec = copy.deepcopy(EXPECTED[name])
        if name[:2] == HANGS_ON_MALLOC:
            del spec["expect"]["origin"]["step"]
        _check_in_full(verdict, spec, ops=True)


@pytest.mark.parametrize(("name", "level"), OBSERVED)
def test_case_unchanged_by_the_observer(jobs: Jobs, name: str, level: str) -> None:
    folder = jobs[f"{level} {name}"]
    for arm in EXPECTED[name]["observer"]:
        recorded, bare = (folder / f"{how}{arm}.txt" for how in ("", "unrecorded "))
        assert parameters(recorded.read_text()) == parameters(bare.read_text())


def test_every_case_has_an_answer() -> None:
    scripts = {path.name for path in CASES.glob("[0-9]*.py")}
    assert scripts == set(EXPECTED)
    assert {name[:2] for name in scripts} >= IN_FULL | AT_LAYER.keys() | HARMLESS


def _check_in_full(verdict: dict[str, Any], spec: dict[str, Any], *, ops: bool = False) -> None:
    expected = spec["expect"]
    assert verdict["verdict"] == expected["verdict"]
    origins = verdict["origins"]
    if "origin" in expected:
        first = origins[: expected.get("within", 1)]
        assert any(_matches(expected["origin"], origin, ops=ops) for origin in first), first
    for other in expected.get("also", []):
        assert any(_matches(other, origin, ops=ops) for origin in origins), origins
    for name, step in expected.get("effects", {}).items():
        assert verdict["effects"][name] == step
    differing = {entry["key"] for entry in verdict["environment"]}
    assert differing >= set(expected.get("environment", ()))


def _matches(expected: dict[str, Any], origin: dict[str, Any], *, ops: bool) -> bool:
    text = json.dumps(origin)
    for field, value in expected.items():
        if field == "names":
            if not all(name in text for name in value):
                return False
        elif field == "op":
            if ops and not any(part in (origin["op"] or "") for part in _as_list(value)):
                return False
        elif origin[field] not in _as_list(value):
            return False
    return True


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
