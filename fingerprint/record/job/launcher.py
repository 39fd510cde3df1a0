"""Starts a command with the recorder in every Python process below it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import IO

from fpdiff.fingerprint.record.job import runfolder
from fpdiff.fingerprint.record.job.launch import launcher_rank
from fpdiff.fingerprint.record.settings import ENVIRONMENT_VARIABLE, Settings
from fpdiff.fingerprint.record.warning import say
from fpdiff.store.errors import RecordError

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(
    settings: Settings,
    command: list[str],
    *,
    force: bool = False,
    variables: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
    meanwhile: AbstractContextManager[None] | None = None,
) -> int:
    """Run a command to its end and record it.

    Its standard streams are this process's; signals reach it; its exit code is returned.

    Args:
        settings: what to record; `settings.out` must not be a run yet.
        command: program and arguments.
        force: replace an existing run.
        variables: further ones for the command's environment.
        stdout: the command's standard output, if not this process's.
        meanwhile: entered when the run's folder has been made, left when the command has ended.

    Returns:
        The command's exit code, 128 + N if signal N ended it.

    Raises:
        RecordError: the run's folder cannot be made, the command does not exist, or it succeeded
            without running a module, so that nothing was recorded.
    """
    rank = launcher_rank(os.environ)
    runfolder.create(settings, command, rank=rank, force=force)
    root = Path(settings.out)
    is_only = rank is None  # Else other ranks' launchers share the folder, and it is theirs too.
    try:
        own = {ENVIRONMENT_VARIABLE: settings.to_json()}
        if settings.level == "kernel":
            # Torch's profiler, which tells kernels' names, would say on stderr when it runs.
            own["KINETO_LOG_LEVEL"] = os.environ.get("KINETO_LOG_LEVEL", "5")
        with meanwhile or nullcontext():
            exit_code = execute(command, {**own, **(variables or {})}, stdout)
    except RecordError:
        if is_only:
            runfolder.remove_if_empty(root)
        raise
    if not (root / "run.json").exists():
        say(f"{root} is gone: it was moved or removed while the command ran")
        return exit_code
    if is_only and runfolder.remove_if_empty(root):
        if exit_code == 0:
            raise RecordError(
                f"nothing was recorded: {command[0]!r} ended without running a torch.nn.Module"
                " outside of compiled code on a rank that was asked for, or its Python was kept"
                f" from fpdiff (by -I, -E, -S or another PYTHONPATH); {root} was not kept"
            )
        return exit_code
    try:
        runfolder.finish(root, exit_code)
    except OSError as error:
        # The command has ended as it would have; a full disk must not look like its failure.
        say(f"cannot note the end of {root}: {error}")
    return exit_code


def execute(command: list[str], variables: Mapping[str, str], stdout: IO[str] | None = None) -> int:
    """Run a command to its end with fpdiff's startup in every Python process below it.

    Args:
        command: program and arguments.
        variables: added to its environment; they say what the startup does.
        stdout: its standard output, if not this process's.

    Returns:
        The command's exit code, 128 + N if signal N ended it.

    Raises:
        RecordError: the command does not exist.
    """
    try:
        process = subprocess.Popen(command, env=_environment(variables), stdout=stdout)
    except OSError as error:
        raise RecordError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
    with _signals_to(process):
        code = process.wait()
    return 128 - code if code < 0 else code


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    startup = resources.files("fpdiff.fingerprint.record") / "startup"
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **variables,
        "PYTHONPATH": f"{startup}{os.pathsep}{path}" if path else str(startup),
    }


@contextmanager
def _signals_to(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Let the command decide what a signal means; this process only waits for it."""

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    # A terminal sends Ctrl-C to the whole foreground group, the command included.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in _FORWARDED:
        before[number] = signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
