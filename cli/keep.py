"""The folder that `--keep` names: new or empty."""

from pathlib import Path

from fpdiff.store.errors import RecordError


def empty_folder(path: Path) -> Path:
    """Make the folder, or take an empty one; return its absolute path.

    Raises:
        RecordError: it holds something, is no folder, or cannot be made.
    """
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RecordError(f"{path} is not an empty folder: give --keep a new one")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"cannot make {path}: {reason}; give --keep another folder") from error
    return path.absolute()
