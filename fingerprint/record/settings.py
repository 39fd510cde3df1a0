"""What to record, and how it travels to child processes."""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from fpdiff.store.errors import RecordError

ENVIRONMENT_VARIABLE = "FPDIFF_RECORD"
"""Carries the settings, as JSON, from `fpdiff record` to the processes below it."""

WATCH_VARIABLE = "FPDIFF_VERIFY"
"""Names the folder that `record.watch` writes to, in the processes that `fpdiff verify` runs."""

DIGESTS = ("xxh3-128", "mix128")
"""Digests of tensors that can be recorded; the first is the default."""

LEVELS = ("step", "layer", "op", "kernel")
"""Rungs that can be recorded; each includes those before it."""

Ranges = tuple[tuple[int, int], ...]
"""Half-open integer ranges (first, end)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One recording's options, see `fpdiff record --help`.

    Attributes:
        out: absolute path of the run's folder.
        level: one of LEVELS.
        steps: steps to record, all if empty.
        modules: regular expression searched for in a module's path; layer events of other
            modules are left out.
        ranks: ranks to record, all if empty.
        stats: record l2, absmax and nonfinite count beside each digest.
        digest: one of DIGESTS.
        rehash: digest a module's arguments again and record those that are no longer what their
            producer left.
        collectives: at rung layer, record what collectives were given and what they left.
        first_step: number of the first step.
    """

    out: str
    level: str = "layer"
    steps: Ranges = ()
    modules: str = ""
    ranks: Ranges = ()
    stats: bool = False
    digest: str = DIGESTS[0]
    rehash: bool = False
    collectives: bool = True
    first_step: int = 0
    _modules: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RecordError: unknown level or digest, an impossible path, or a bad regular expression.
        """
        if self.level not in LEVELS:
            known = " or ".join(LEVELS)
            raise RecordError(f"level {self.level!r} is not known: give {known}")
        if self.digest not in DIGESTS:
            known = " or ".join(DIGESTS)
            raise RecordError(f"digest {self.digest!r} is not known: give {known}")
        if not _is_text(self.out):
            raise RecordError(
                f"{self.out!r} is no UTF-8, as a run's path must be: give another --out"
            )
        try:
            pattern = re.compile(self.modules)
        except re.error as error:
            raise RecordError(
                f"--modules {self.modules!r} is not a regular expression: {error}"
            ) from error
        object.__setattr__(self, "_modules", pattern)

    @property
    def ops(self) -> bool:
        """Whether operators are recorded."""
        return self.level in ("op", "kernel")

    def wants_step(self, step: int) -> bool:
        """Return whether a step is in the window."""
        return not self.steps or _within(self.steps, step)

    def wants_rank(self, rank: int) -> bool:
        """Return whether a rank is in the window."""
        return not self.ranks or _within(self.ranks, rank)

    def wants_module(self, path: str) -> bool:
        """Return whether layer events of a module are in the window."""
        return not self.modules or self._modules.search(path) is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        values = asdict(self)
        del values["_modules"]
        return values

    def to_json(self) -> str:
        """Return the text for ENVIRONMENT_VARIABLE."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Read the text of ENVIRONMENT_VARIABLE."""
        values = json.loads(text)
        for name in ("steps", "ranks"):
            values[name] = tuple((int(first), int(end)) for first, end in values[name])
        return cls(**values)


def parse_steps(text: str) -> Ranges:
    """Read `10:20,400` as steps 10 to 19 and 400, as Python slices count.

    Raises:
        RecordError: the text is neither.
    """
    return _parse(text, ":", "--steps", "10:20,400", 0)


def parse_ranks(text: str) -> Ranges:
    """Read `0,3-5` as ranks 0, 3, 4 and 5.

    Raises:
        RecordError: the text is neither.
    """
    return _parse(text, "-", "--ranks", "0,3-5", 1)


def _parse(text: str, separator: str, option: str, example: str, closed: int) -> Ranges:
    ranges = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(rf"(\d+)(?:{separator}(\d+))?", part.strip())
        first = int(match[1]) if match else 0
        end = int(match[2]) + closed if match and match[2] else first + 1
        if match is None or end <= first:
            raise RecordError(f"{option} {text!r} is not understood: write it like {example}")
        ranges.append((first, end))
    return tuple(ranges)


def _within(ranges: Ranges, number: int) -> bool:
    return any(first <= number < end for first, end in ranges)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
