"""A sample of bench/faults.py: one flipped bit is found where it was flipped, on real ranks."""

import subprocess
import sys

import pytest
from processes import ROOT


@pytest.mark.parametrize("model", ["ddp", "fsdp2"])
def test_a_flipped_bit_is_found(model: str) -> None:
    command = [sys.executable, ROOT / "bench" / "faults.py", "--model", model, "--faults", "12"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact" in done.stdout and "missed" not in done.stdout
