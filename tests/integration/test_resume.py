"""A resumed run that counts from zero: where it belongs, and what it lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAMS, Preloaded, assert_fails, compare, compare_json

STEP = 4

LOST = {
    "precision": ("state", "parameter", "inp.weight"),
    "optimizer": ("state", "optimizer state", "inp.weight.exp_avg"),
    "schedule": ("state", "param_group option", "optimizer0.group0.lr"),
    "rng": ("rng", None, "drop.torch"),
    "data": ("data", None, "arg.0"),
    "buffer": ("state", "buffer", "calls"),
    "scaler": ("state", "gradient scaler", "scaler0.scale"),
}
"""By what a resume loses: class, component and place of the first origin."""


AT_OP = {"rng": ("rng", None, "drop.torch.cpu")}
"""What rung op says otherwise."""


@pytest.fixture(scope="module", params=["layer", "op"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(level: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("resume")
    preloaded = Preloaded()
    for name in ("straight", "", *LOST):
        out = folder / (name or "whole")
        pid = preloaded.start(
            PROGRAMS / "resume.py",
            folder / "checkpoint.pt",
            name,
            output=folder / f"{out.name}.txt",
            record={"path": str(out), "level": level},
        )
        assert preloaded.wait(pid) == 0, (folder / f"{out.name}.txt").read_text()
    yield folder
    preloaded.close()


@pytest.mark.parametrize("straight_first", [True, False])
def test_a_whole_resume_is_identical(folder: Path, straight_first: bool) -> None:
    pair = ("straight", "whole") if straight_first else ("whole", "straight")
    verdict = compare_json(folder / pair[0], folder / pair[1], "--align", "auto")
    assert (verdict["verdict"], verdict["compared"]["num_steps"]) == ("identical", 4)
    assert f"step {STEP}" in verdict["notes"][0] and "step 0" in verdict["notes"][0]


@pytest.mark.parametrize("lost", LOST)
def test_what_a_resume_lost_is_named(folder: Path, level: str, lost: str) -> None:
    expected = AT_OP.get(lost, LOST[lost]) if level == "op" else LOST[lost]
    verdict = compare_json(folder / "straight", folder / lost, "--align", "auto")
    first = verdict["origins"][0]
    place = f"{first['module']}.{first['slot']}".lstrip(".")
    assert (first["step"], first["class"], first["component"], place) == (STEP, *expected)
    others = {(origin["class"], origin["component"]) for origin in verdict["origins"]}
    assert others == {expected[:2]}


def test_the_numbers_that_people_watch_are_told(folder: Path) -> None:
    verdict = compare_json(folder / "straight", folder / "schedule", "--align", "auto")
    first = {metric["name"]: metric["step"] for metric in verdict["metrics"]}
    assert first == {
        "loss": STEP + 1,
        "optimizer0.group0.lr": STEP,
        "grad_norm": STEP + 1,
    }


def test_twins_are_not_shifted(folder: Path) -> None:
    verdict = compare_json(folder / "whole", folder / "data", "--align", "auto")
    assert (verdict["first_step"], verdict["notes"]) == (0, [])
    twins = compare_json(folder / "straight", folder / "straight", "--align", "auto")
    assert (twins["verdict"], twins["notes"]) == ("identical", [])


def test_an_unknown_way_to_align_is_refused(folder: Path) -> None:
    assert_fails(
        compare(folder / "straight", folder / "whole", "--align", "best"),
        "--align best is not known",
    )
