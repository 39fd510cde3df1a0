"""The run's folder and its run.json."""

import datetime
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from fpdiff.fingerprint.record.job.launch import launch_id, restarts
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.store.errors import RecordError, StoreError
from fpdiff.store.files import attempts, write_json
from fpdiff.store.schema import CONTENTS, VERSION, attempt_name, rank_name


def create(
    settings: Settings, command: list[str], *, rank: int | None, force: bool = False
) -> None:
    """Make the folder and run.json, or join those of the same launch.

    Where each rank starts its own fpdiff, the first to come makes the folder and the others join;
    ranks never wait for one another.

    Args:
        settings: where, and what is recorded.
        command: the command line that is recorded.
        rank: this process's rank if other ranks create the same run, else None.
        force: replace an existing run.

    Raises:
        RecordError: the folder exists, belongs to something else, or cannot be written.
    """
    root = Path(settings.out)
    launch = "" if rank is None else launch_id(os.environ)
    try:
        if _takes(root, launch, rank, force=force):
            root.mkdir(parents=True, exist_ok=True)
            write_json(root / "run.json", _describe(settings, command, launch))
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"cannot write {root}: {reason}; give a writable --out") from error


def _takes(root: Path, launch: str, rank: int | None, *, force: bool) -> bool:
    """Return whether the folder is to be made; else it is that of this launch."""
    if (root / "run.json").exists():
        if rank is not None and _can_join(root, launch, rank):
            return False
        if not force:
            raise RecordError(f"{root} exists: give another --out, or --force to replace that run")
        if rank is not None:
            raise RecordError(
                f"{root} exists, and ranks that start one by one cannot agree on who replaces it:"
                " remove it first"
            )
        remove(root)
    elif rank is None and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise RecordError(f"{root} exists and is not a run: give another --out")
    return True


def of_this_attempt(root: Path) -> Path:
    """Return where this process records: an elastic launcher's later attempt is a run of its own.

    The first attempt is in the run's folder and the nth restart in `attempt=n` within it, so that
    what the first recorded is not lost, and each can be read and compared.
    """
    count = restarts(os.environ)
    if not count or root.name == attempt_name(count):
        return root
    return root / attempt_name(count)


def join_attempt(root: Path) -> Path:
    """Return the folder that this process records in, and describe it if it is a later attempt's.

    Raises:
        StoreError: there is no such run on this machine.
        OSError: it cannot be written.
    """
    if not (root / "run.json").exists():
        raise StoreError(
            f"{root} is not on {socket.gethostname()}: start `fpdiff record` on every machine, or"
            " give --out a folder that all of them share"
        )
    folder = of_this_attempt(root)
    if folder != root and not (folder / "run.json").exists():
        info = json.loads((root / "run.json").read_text())
        folder.mkdir(exist_ok=True)
        write_json(folder / "run.json", {**info, "created": _now()})
    return folder


def _can_join(root: Path, launch: str, rank: int) -> bool:
    """Return whether a run belongs to this launch and does not have this rank yet."""
    try:
        same = json.loads((root / "run.json").read_text())["launch"] == launch
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return same and not (root / "journal" / rank_name(rank)).exists()


def finish(root: Path, exit_code: int | None) -> None:
    """Note in run.json that the command has ended; the exit code is the last attempt's."""
    *earlier, last = _folders(root)
    for folder in earlier:
        _end(folder, None)
    _end(last, exit_code)


def _folders(root: Path) -> list[Path]:
    """Return the folders of all attempts, the first of which is the run's."""
    return [root, *(root / name for name in attempts(root))]


def _end(root: Path, exit_code: int | None) -> None:
    path = root / "run.json"
    info = json.loads(path.read_text())
    info["ended"] = _now()
    info["exit_code"] = exit_code
    write_json(path, info)


def remove_if_empty(root: Path) -> bool:
    """Remove a run in which no process has recorded anything; return whether it was so."""
    if any((folder / "journal").exists() for folder in _folders(root)):
        return False
    remove(root)
    return True


def remove(root: Path) -> None:
    """Remove a run; a folder that holds other things too keeps them."""
    for name in attempts(root):
        remove(root / name)
    for name in CONTENTS:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if not any(root.iterdir()):
        root.rmdir()


def _describe(settings: Settings, command: list[str], launch: str) -> dict[str, Any]:
    return {
        "schema": VERSION,
        "digest": settings.digest,
        "level": settings.level,
        "command": command,
        "created": _now(),
        "settings": settings.to_dict(),
        "launch": launch,
        "cwd": _working_folder(),
        "python": sys.version.split()[0],
        "git_commit": _git_commit(),
    }


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # It has been removed.
        return None


def _git_commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
