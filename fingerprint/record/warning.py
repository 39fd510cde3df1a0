"""Words to the user that cannot harm the program, however it treats warnings and stderr."""

import contextlib
import sys
import warnings


def warn(text: str, *, stacklevel: int = 1) -> None:
    """Warn; where that raises, print the text instead.

    Args:
        text: one sentence.
        stacklevel: as in `warnings.warn`, counted from the caller of this function.
    """
    try:
        warnings.warn(f"fpdiff: {text}", stacklevel=stacklevel + 1)
    except Exception:  # noqa: BLE001  # Warnings may be errors, and be shown by the program's code.
        say(text)


def say(text: str) -> None:
    """Print a sentence on stderr; if that takes nothing, it is not said.

    Args:
        text: one sentence.
    """
    if sys.stderr is not None:  # Else `print` would take stdout.
        with contextlib.suppress(Exception):  # It is closed, full or of the program's own making.
            print(f"fpdiff: {text}", file=sys.stderr, flush=True)
