"""`fpdiff verify`: an observer that disturbs is caught, one that does not is not blamed."""

import json
from pathlib import Path
from typing import Any

import pytest
from processes import FPDIFF, PROGRAMS, PYTHON, TORCHRUN, TRAIN_GPT, Result, assert_fails, run

PERTURBED = PROGRAMS / "perturbed.py"
PRINTED = "perturbed.py begins"


def verify(*command: object, options: tuple[object, ...] = ()) -> Result:
    return run([*FPDIFF, "verify", *options, "--", *command])


def verified(how: str, *options: object) -> dict[str, Any]:
    result = verify(*PYTHON, PERTURBED, how, options=("--json", *options))
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == {"valid": 0, "invalid": 1, "unknown": 2}[found["verdict"]]
    assert PRINTED in result.stderr
    return found


def test_two_ranks_are_left_as_they_were(tmp_path: Path) -> None:
    command = [*TORCHRUN, TRAIN_GPT, "--steps", "3"]
    result = verify(*command, options=("--level", "op", "--keep", tmp_path / "kept"))
    assert result.returncode == 0, result.stderr
    last = " ".join(result.stdout.splitlines()[-3:])
    assert "valid: " in last and "on 2 ranks are bitwise the same" in last
    assert (tmp_path / "kept" / "recorded" / "run.json").exists()
    assert "running the command without the recorder" in result.stderr


def test_an_observer_that_adds_one_ulp_is_caught_and_located() -> None:
    found = verified("recorded")
    assert found["verdict"] == "invalid"
    difference = found["difference"]
    place = (difference["rank"], difference["step"], difference["parameter"])
    assert place == (0, 2, "0.weight")


def test_a_program_that_does_not_repeat_itself_is_not_blamed_on_the_recorder() -> None:
    found = verified("always")
    assert (found["verdict"], found["difference"]["step"]) == ("unknown", 0)
    assert "differ as well" in found["summary"]


def test_a_program_that_fails_only_when_recorded_is_invalid() -> None:
    found = verified("dies")
    assert found["verdict"] == "invalid" and "exits with 1 when it is recorded" in found["summary"]


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ([*PYTHON, "-c", "raise SystemExit(3)"], ["exits with 3 without the recorder"]),
        ([*PYTHON, "-c", "import torch"], ["without a step of a torch.optim optimizer"]),
        (["no-such-program"], ["cannot run 'no-such-program'"]),
        ([], ["there is no command to verify"]),
    ],
)
def test_what_cannot_be_verified_is_one_sentence(command: list[str], parts: list[str]) -> None:
    result = verify(*command)
    assert result.returncode == 2 and result.stdout == ""
    assert all(part in result.stderr.splitlines()[-1] for part in parts)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    result = verify(*PYTHON, PERTURBED, options=("--keep", tmp_path))
    assert_fails(result, "is not an empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
