"""The answer as plain data; terminal and JSON are renderings of it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from fpdiff.fingerprint.bisect.wording import ranks_text, steps_text

SCHEMA = 1
"""Version of the JSON form."""

CHECKS = (
    "files",
    "events",
    "ending",
    "presence",
    "collectives",
    "recomputation",
    "replicas",
)
"""What is checked, in the order in which it is told, see docs/how-to/certify-one-run.md."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One of CHECKS.

    Attributes:
        name: which.
        result: "sound", "unsound", or "nothing" if there was nothing to check.
        rests_on: what was looked at, with counts; of nothing, why.
    """

    name: str
    result: str
    rests_on: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that should not be.

    Attributes:
        check: one of CHECKS.
        summary: one sentence, without the ranks and steps.
        ranks: ranks on which it was found; none if it is about the run.
        steps: steps in which it was found; none if it is about no step.
        count: how often it was found.
    """

    check: str
    summary: str
    ranks: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    count: int = 1

    @property
    def text(self) -> str:
        """The sentence with the ranks and steps before it."""
        parts = [ranks_text(self.ranks)] if self.ranks else []
        parts += [steps_text(self.steps)] if self.steps else []
        return f"{', '.join(parts)}: {self.summary}" if parts else self.summary


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a run's record is worth.

    Attributes:
        verdict: "sound" or "unsound".
        summary: one line that says it all.
        run: path of the run.
        rung: how deep it was recorded, None if it does not say.
        ranks: ranks that are there.
        steps: first and last step, empty if there is none.
        num_steps: how many steps the rank with most of them has.
        events: events read.
        checks: one for each of CHECKS, in that order.
        findings: in the order of CHECKS, the earliest step first.
        num_findings: how many there are when `findings` had to be cut.
        blind_spots: what was executed but not fingerprinted: reason to count, on all ranks.
        notes: what the settings left out, and what is worth knowing and is no finding.
    """

    verdict: str
    summary: str
    run: str
    rung: str | None
    ranks: list[int]
    steps: list[int]
    num_steps: int
    events: int
    checks: list[Check]
    findings: list[Finding]
    num_findings: int
    blind_spots: dict[str, int]
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """Return 0 for sound, 1 for unsound."""
        return 0 if self.verdict == "sound" else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}
