"""Findings as they come: one entry for all ranks and steps that share a sentence."""

from dataclasses import dataclass, field

from fpdiff.fingerprint.certify.certificate import CHECKS, Finding

MAX_FINDINGS = 200
"""So many different sentences are kept; the others are counted."""


@dataclass
class _Entry:
    ranks: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    count: int = 0


class Ledger:
    """What was found."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._left_out: set[str] = set()
        self._num_left_out = 0

    def add(
        self, check: str, summary: str, *, rank: int | None = None, step: int | None = None
    ) -> None:
        """Note a finding; `check` is one of CHECKS."""
        key = check, summary
        if key not in self._entries and len(self._entries) >= MAX_FINDINGS:
            self._left_out.add(check)
            self._num_left_out += 1
            return
        entry = self._entries.setdefault(key, _Entry())
        entry.ranks |= set() if rank is None else {rank}
        entry.steps |= set() if step is None else {step}
        entry.count += 1

    def has(self, check: str) -> bool:
        """Return whether a check has found something."""
        return check in self._left_out or any(check == name for name, _ in self._entries)

    @property
    def num_findings(self) -> int:
        """How many there are, those that were not kept included."""
        return len(self._entries) + self._num_left_out

    def findings(self) -> list[Finding]:
        """Return what was kept, in the order of CHECKS, the earliest step first."""
        found = [
            Finding(
                check=check,
                summary=summary,
                ranks=sorted(entry.ranks),
                steps=sorted(entry.steps),
                count=entry.count,
            )
            for (check, summary), entry in self._entries.items()
        ]
        return sorted(found, key=lambda f: (CHECKS.index(f.check), f.steps[:1], f.ranks[:1]))
