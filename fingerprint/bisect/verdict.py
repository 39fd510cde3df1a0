"""The answer as plain data; terminal and JSON are renderings of it.

JSON knows no NaN and no infinities: they are the strings "NaN", "Infinity" and "-Infinity" there,
as in what `fpdiff sql --format json` prints.
"""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

SCHEMA = 1
"""Version of the JSON form."""

CLASSES = (
    "data",
    "state",
    "rng",
    "environment",
    "structure",
    "metadata",
    "collective",
    "arguments",
    "uninitialised",
    "unseen-producer",
    "kernel",
    "computation",
)
"""What kind of difference an origin is, see docs/reference/verdict.md."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What the verdict rests on.

    Attributes:
        rung: the deepest that both runs recorded.
        ranks: ranks compared.
        steps: first and last step compared.
        num_steps: how many steps the rank compared over most of them has.
        events: events compared, on all ranks.
    """

    rung: str
    ranks: list[int]
    steps: list[int]
    num_steps: int
    events: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A mismatched event none of whose inputs mismatch.

    Attributes:
        rank: rank on which it happened; `step`, `microbatch` and `phase` say when.
        module: path from the root module, "" for the root itself.
        module_class: its class.
        call: nth call of the module in that microbatch.
        op: operator, None at rungs that record none.
        source: `file:line` of the program that was running, or `backward of file:line`; None
            where that says nothing.
        occurrence: nth time at this point of the call.
        kind: what the digest is of, see docs/reference/schema.md.
        slot: which tensor.
        seq: number of the event in the run that has it (A if both).
        class_: one of CLASSES; `class` in JSON.
        component: for class state, which: parameter, buffer, optimizer state, ...
        summary: one sentence.
        a: digest, dtype, shape, value and statistics in run A; None if A has no such event.
        b: the same in run B.
        inputs: what it read, all of it equal in both runs (the first 16).
        num_inputs: how much it read.
        matched_before: events of this rank that matched before it.
        strength: what the attribution rests on, and what could not be seen.
        hint: what to do about it.
        evidence: further observations that bear on it.
        count: how many neighbouring events this entry stands for; more than one only for
            events that one run alone has, or that moved together.
        reaches: what it led to in the same step, the loss or else a parameter, and the events on
            the way there; empty if it led to neither.
    """

    rank: int
    step: int
    microbatch: int
    phase: str
    module: str
    module_class: str
    call: int
    op: str | None
    source: str | None
    occurrence: int
    kind: str
    slot: str
    seq: int
    class_: str
    component: str | None
    summary: str
    a: dict[str, Any] | None
    b: dict[str, Any] | None
    inputs: list[str]
    num_inputs: int
    matched_before: int
    strength: str
    hint: str | None
    evidence: list[str] = field(default_factory=list)
    count: int = 1
    reaches: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OriginGroup:
    """Origins of one rank that one cause may have made.

    They are of one step, phase, class, kind and op, and differ in the module, the parameter or the
    call.

    Attributes:
        rank: the rank.
        count: how many they are.
        of: how many such events there are, equal or not.
        origins: places in the verdict's `origins` of those listed there; the first is the earliest.
        members: what tells them apart, the module or the parameter (the first 16).
        patterns: the same with a star for each number that varies, and how many are of each (the
            first 16).
        hint: what to do about all of them, where they say more together than each for itself.
    """

    rank: int
    count: int
    of: int
    origins: list[int]
    members: list[str]
    patterns: dict[str, int]
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A rank that took a mismatch in from others.

    Attributes:
        rank: the rank; `step` is the step.
        from_: ranks whose own gradients differ; none if it came from ranks that were not
            compared. `from` in JSON.
        via: through what it came.
    """

    rank: int
    step: int
    from_: list[int]
    via: str


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that differs, at the first step at which it does."""

    name: str
    step: int
    rank: int
    a: float | None
    b: float | None


@dataclass(frozen=True, kw_only=True)
class EnvironmentDifference:
    """An entry of the environment that differs; `decides` if it can change a result.

    Attributes:
        key: its name.
        a: its value in A, and `b` in B.
        b: see `a`.
        ranks: on which ranks.
        decides: it can change the result of a kernel.
        since: first step in which it differs so; None from the beginning.
        until: last step in which it does; None up to the end.
        phases: in which phases of these steps; all if empty.
    """

    key: str
    a: Any
    b: Any
    ranks: list[int]
    decides: bool
    since: int | None = None
    until: int | None = None
    phases: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What the difference did: the first step at which each differs, or None.

    Attributes:
        loss: what backward() was called on.
        parameters: at the start of the step or after its optimizer.
        healed: the last step compared is equal again on every rank.
    """

    loss: int | None
    parameters: int | None
    healed: bool


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """The first differing step of one rank.

    Attributes:
        rank: the rank; `step` is the step.
        steps_matched: compared steps before it.
        events: of the step, those that only one run has included.
        mismatched: events that differ; `only_a`, `only_b` and `carriers` are among them.
        only_a: events that only run A has; `only_b` likewise.
        moved: events that come at another place of the step.
        carriers: events that read a mismatched one.
    """

    rank: int
    step: int
    steps_matched: int
    events: int
    mismatched: int
    only_a: int
    only_b: int
    moved: int
    carriers: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What was counted on one rank, or on all.

    Attributes:
        steps: how many steps were read: those that differ, be it in something harmless.
        events: how many events they hold, those that only one run has included.
        differing: how many of these differ.
    """

    steps: int = 0
    events: int = 0
    differing: int = 0

    def __add__(self, other: "Counted") -> "Counted":
        """Return the sum of both."""
        return Counted(
            steps=self.steps + other.steps,
            events=self.events + other.events,
            differing=self.differing + other.differing,
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of comparing two runs.

    Attributes:
        verdict: "identical", "diverged" or "incomparable".
        summary: one line that says it all.
        a: path of run A; `b` of run B.
        compared: what it rests on.
        first_step: first step at which any rank differs.
        origins: in program order, the earliest first.
        num_origins: how many there are when `origins` had to be cut.
        groups: the same origins by what one cause may have made, the earliest first.
        receivers: ranks that took the difference in from others.
        rank_steps: each rank's first differing step.
        effects: what the difference did.
        metrics: loss and logged numbers that differ.
        environment: entries that differ.
        blind_spots: what was executed but not fingerprinted, by reason, with counts of both runs.
        notes: what limits the comparison, or is worth knowing and is no divergence.
        counted: every event that differs, if that was asked for.
        next: the command that narrows further, or None.
    """

    verdict: str
    summary: str
    a: str
    b: str
    compared: Compared | None = None
    first_step: int | None = None
    origins: list[Origin] = field(default_factory=list)
    num_origins: int = 0
    groups: list[OriginGroup] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)
    rank_steps: list[RankStep] = field(default_factory=list)
    effects: Effects = field(
        default_factory=lambda: Effects(loss=None, parameters=None, healed=False)
    )
    metrics: list[Metric] = field(default_factory=list)
    environment: list[EnvironmentDifference] = field(default_factory=list)
    blind_spots: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counted: Counted | None = None
    next: str | None = None

    @property
    def exit_code(self) -> int:
        """Return 0 for identical, 1 for diverged, 2 for incomparable."""
        return {"identical": 0, "diverged": 1}.get(self.verdict, 2)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **_plain(self)}


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it; fields that avoid Python's keywords get their names."""
    if is_dataclass(value):
        return {f.name.rstrip("_"): _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
