"""Run by Python at its start in every process below `fpdiff record` and `fpdiff verify`.

Arms the recorder, or what it is held against, when torch has been imported, and costs nothing in a
process that never does. Another `sitecustomize` further down the path is run as it would be without
this one.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _ArmAfterTorch:
    """Finds `torch` as the other finders would and arms when its import has ended."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader)
        return spec


def _run_after(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        _arm()

    loader.exec_module = exec_module


def _arm() -> None:
    try:
        from fpdiff.fingerprint.record.arming import arm
        from fpdiff.fingerprint.record.settings import (
            ENVIRONMENT_VARIABLE,
            WATCH_VARIABLE,
            Settings,
        )

        if ENVIRONMENT_VARIABLE in os.environ:
            arm(Settings.from_json(os.environ[ENVIRONMENT_VARIABLE]))
        if folder := os.environ.get(WATCH_VARIABLE):
            from fpdiff.fingerprint.record.watch import watch

            watch(folder)
    except Exception as error:  # noqa: BLE001  # The program must start all the same.
        _say(
            f"fpdiff: nothing is recorded in process {os.getpid()}: {error!r}; install fpdiff into"
            f" {sys.executable}'s environment"
        )


def _say(sentence: str) -> None:
    """Print a sentence as `record.warning` does, which may be what could not be imported."""
    if sys.stderr is not None:  # Else `print` would take stdout.
        with contextlib.suppress(Exception):
            print(sentence, file=sys.stderr, flush=True)


def _run_next_sitecustomize() -> None:
    rest = [path for path in sys.path if not _is_here(path)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _is_here(path: str) -> bool:
    try:
        return os.path.abspath(path or os.curdir) == _HERE
    except OSError:  # The working directory has been removed.
        return False


if "FPDIFF_RECORD" in os.environ or "FPDIFF_VERIFY" in os.environ:
    sys.meta_path.insert(0, _ArmAfterTorch())
_run_next_sitecustomize()
