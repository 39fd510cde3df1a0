"""A sample of bench/faults.py: one flipped bit is found where it was flipped, on real ranks."""

import subprocess
import sys

import pytest
from processes import TESTS, environment


@pytest.mark.parametrize("model", ["ddp", "fsdp2"])
def test_a_flipped_bit_is_found(model: str) -> None:
    script = str(TESTS.parent / "bench" / "faults.py")
    done = subprocess.run(
        [sys.executable, script, "--model", model, "--faults", "4"],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact" in done.stdout and "missed" not in done.stdout
