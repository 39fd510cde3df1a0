"""Findings as they come: one entry for all ranks and steps that share a sentence."""

from dataclasses import dataclass, field

from fpdiff.fingerprint.certify.certificate import CHECKS, Finding

MAX_FINDINGS = 50
"""So many different sentences of a check are kept; the others are counted."""


@dataclass
class _Entry:
    ranks: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    count: int = 0


class Ledger:
    """What was found."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[str, dict[str, _Entry]] = {}  # by check, by sentence
        self._left_out: set[int] = set()  # hashes of what was not kept

    def add(
        self, check: str, summary: str, *, rank: int | None = None, step: int | None = None
    ) -> None:
        """Note a finding; `check` is one of CHECKS."""
        entries = self._entries.setdefault(check, {})
        if summary not in entries and len(entries) >= MAX_FINDINGS:
            self._left_out.add(hash((check, summary)))
            return
        entry = entries.setdefault(summary, _Entry())
        entry.ranks |= set() if rank is None else {rank}
        entry.steps |= set() if step is None else {step}
        entry.count += 1

    def has(self, check: str) -> bool:
        """Return whether a check has found something."""
        return check in self._entries

    @property
    def num_findings(self) -> int:
        """How many there are, those that were not kept included."""
        return sum(map(len, self._entries.values())) + len(self._left_out)

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
            for check, entries in self._entries.items()
            for summary, entry in entries.items()
        ]
        return sorted(found, key=lambda f: (CHECKS.index(f.check), f.steps[:1], f.ranks[:1]))
