"""What the recorder has to say, where the program leaves it no way to say it."""

import importlib.util
import io
import os
import sys
from collections.abc import Callable
from importlib import resources
from types import ModuleType

import pytest

from fpdiff.fingerprint.record.settings import ENVIRONMENT_VARIABLE
from fpdiff.fingerprint.record.warning import say, warn

STARTUP = resources.files("fpdiff.fingerprint.record") / "startup" / "sitecustomize.py"


def closed() -> io.TextIOBase:
    stream = io.StringIO()
    stream.close()
    return stream


def full() -> io.TextIOBase:
    return _unbuffered(os.open("/dev/full", os.O_WRONLY))


def without_a_reader() -> io.TextIOBase:
    reader, writer = os.pipe()
    os.close(reader)
    return _unbuffered(writer)


def _unbuffered(descriptor: int) -> io.TextIOBase:
    """Return a stream that keeps nothing which its end would try to write again."""
    return io.TextIOWrapper(io.FileIO(descriptor, "w"), write_through=True)


class Own(io.TextIOBase):
    def write(self, text: str) -> int:
        raise LookupError("a stream of the program's own")


@pytest.fixture(scope="module")
def startup() -> ModuleType:
    """What Python runs at its start below a recording."""
    spec = importlib.util.spec_from_file_location("startup", str(STARTUP))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("speak", [say, warn, None], ids=["say", "warn", "startup"])
@pytest.mark.parametrize("stream", [None, closed, full, without_a_reader, Own])
def test_what_stderr_does_not_take_is_not_said(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    startup: ModuleType,
    speak: Callable[[str], None] | None,
    stream: Callable[[], io.TextIOBase] | None,
) -> None:
    """Nothing is raised into the program, and nothing goes among its data."""
    stderr = stream and stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    if speak is None:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "no settings")
        startup._arm()
    else:
        speak("the disk is full")
    if stderr is not None:
        stderr.close()
    assert capsys.readouterr().out == ""


def test_a_warning_that_would_be_an_error_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    warn("the disk is full")  # Warnings are errors in these tests.
    assert capsys.readouterr() == ("", "fpdiff: the disk is full\n")


def test_a_program_that_cannot_be_recorded_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, startup: ModuleType
) -> None:
    """Its environment has another fpdiff, say, than that of the launcher."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "no settings")
    startup._arm()
    told = capsys.readouterr().err
    assert told.startswith(f"fpdiff: nothing is recorded in process {os.getpid()}: ")
    assert told.endswith(f"; install fpdiff into {sys.executable}'s environment\n")
