"""Warnings that cannot harm the program, even where it turns warnings into errors."""

import sys
import warnings


def warn(text: str, *, stacklevel: int = 1) -> None:
    """Warn; where warnings are errors, print the text instead of raising.

    Args:
        text: one sentence.
        stacklevel: as in `warnings.warn`, counted from the caller of this function.
    """
    try:
        warnings.warn(f"fpdiff: {text}", stacklevel=stacklevel + 1)
    except Warning:
        print(f"fpdiff: {text}", file=sys.stderr)
