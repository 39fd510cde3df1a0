"""What a running program may switch, and which decides the bits that operators compute.

The program may switch it in its middle, or around a part of each step only. So it is looked at
whenever a root is called, a backward pass begins and an optimizer steps; what one of these finds
otherwise than the last time is noted.
"""

from itertools import compress
from typing import Any

import torch

MAX_NOTES = 512
"""What is switched to and fro within each step is noted so often, and then no more."""

TOO_MANY = "switches that were thrown too often to be noted"
"""The blind spot of those beyond."""

_SDPA = ("flash", "mem_efficient", "math", "cudnn")
_FP32 = (("generic", "all"), *((b, o) for b in ("mkldnn", "cuda") for o in ("all", "matmul")))
_FP32 += tuple((b, o) for b in ("mkldnn", "cuda") for o in ("conv", "rnn"))

_Positions = tuple[Any, ...]


class Switches:
    """Notes the positions of a program's switches, where they are not those of the time before.

    Attributes:
        has_news: something was noted since the notes were last taken.
        num_lost: how many notes were not kept.
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self.has_news = False
        self.num_lost = 0
        self._known: dict[tuple[str, str], _Positions] = {}
        self._notes: list[tuple[str, str, int, dict[str, Any]]] = []

    def look(self, phase: str, root: str, step: int) -> None:
        """Look at all switches.

        Args:
            phase: what is about to begin.
            root: the model that is called, empty for one that has no name and for what is no call.
            step: the one that it belongs to.
        """
        positions = _positions()
        before = self._known.get((phase, root))
        if positions == before:
            return
        self._known[phase, root] = positions
        if len(self._notes) >= MAX_NOTES:
            self.num_lost += 1
            return
        old = {} if before is None else _named(before)
        found = {key: value for key, value in _named(positions).items() if old.get(key) != value}
        self._notes.append((phase, root, step, found))
        self.has_news = True

    def notes(self, environment: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what is otherwise than an environment says, and each change after that.

        Args:
            environment: by the same keys.
        """
        self.has_news = False
        said: dict[tuple[str, str, str], Any] = {}
        notes = []
        for phase, root, step, found in self._notes:
            for key, value in found.items():
                if said.get((phase, root, key), environment.get(key)) != value:
                    notes.append(
                        {"step": step, "phase": phase, "root": root, "key": key, "value": value}
                    )
                said[phase, root, key] = value
        return notes


def describe() -> dict[str, Any]:
    """Return the positions of all switches, by their keys in an environment."""
    return _named(_positions())


def _positions() -> _Positions:
    """Return what is compared at each look: a few microseconds, and no text is made."""
    c = torch._C
    sdpa = tuple(getattr(c, f"_get_{name}_sdp_enabled")() for name in _SDPA)
    fp32: tuple[str, ...] = ()
    if hasattr(c, "_get_fp32_precision_getter"):  # Torch 2.9 and newer.
        fp32 = tuple(c._get_fp32_precision_getter(*place) for place in _FP32)
    return (
        torch.get_num_threads(),
        c._get_deterministic_algorithms(),
        _matmul_precision(),
        torch.get_default_dtype(),
        c._get_mkldnn_enabled(),
        sdpa,
        fp32,
    )


def _matmul_precision() -> str | None:
    """Return the precision by its older name, None where it has none.

    Torch refuses to say it once the program has set that of one library only.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _named(positions: _Positions) -> dict[str, Any]:
    threads, deterministic, matmul, dtype, mkldnn, sdpa, fp32 = positions
    found = {
        "threads": threads,
        "deterministic_algorithms": deterministic,
        "float32_matmul_precision": matmul,
        "default_dtype": str(dtype),
        "mkldnn": mkldnn,
        "sdpa_backends": ", ".join(compress(_SDPA, sdpa)),
    }
    if fp32:
        named = zip(_FP32, fp32, strict=True)
        found["fp32_precision"] = ", ".join(f"{b}.{o} {p}" for (b, o), p in named if p != "none")
    return {f"decides.{key}": value for key, value in found.items()}
