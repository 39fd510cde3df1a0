"""The row that a closed step leaves in STEPS: digests over its events, in order."""

from typing import Any

import numpy as np
import xxhash

from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.fingerprint.record.events.sitetable import SiteTable
from fpdiff.store.columns import EventColumns
from fpdiff.store.schema import GROUPS

_APART = 1 << GROUPS.index("generator") | 1 << GROUPS.index("metrics")
"""Groups that are not in the totals."""


class StepRow:
    """Accumulates a step's content and structure digests, flush by flush."""

    def __init__(self, step: int, first_seq: int, chain: bytes) -> None:
        """Start an empty step; `chain` is the step before's."""
        self._step = step
        self._first_seq = first_seq
        self._before = chain
        self._events = 0
        self._microbatches = 0
        self._content = {group: xxhash.xxh3_128() for group in ("", *GROUPS)}
        self._structure = {group: xxhash.xxh3_128() for group in ("", *GROUPS)}
        self._seen: set[str] = set()

    def add(self, columns: EventColumns, sites: SiteTable) -> None:
        """Add the next events of the step."""
        if not len(columns):
            return
        number = np.array(columns.sites, np.int64)
        microbatch = np.array(columns.microbatches, np.int32)
        content = columns.digest_array()
        structure = np.hstack(
            [sites.descriptions()[number], microbatch.view(np.uint8).reshape(-1, 4)]
        )
        masks = sites.masks()[number]
        self._update("", content, structure, masks & _APART == 0)
        for bit, group in enumerate(GROUPS):
            member = masks >> bit & 1 == 1
            if member.any():
                self._seen.add(group)
                self._update(group, content, structure, member)
        self._events += len(columns)
        self._microbatches = max(self._microbatches, int(microbatch.max()) + 1)

    def _update(self, group: str, content: Any, structure: Any, member: Any) -> None:
        self._content[group].update(content[member].tobytes())
        self._structure[group].update(structure[member].tobytes())

    def row(self, *, ended: bool) -> dict[str, Any]:
        """Return the row of STEPS for the events added so far.

        Args:
            ended: the program has ended the step, not the recording.
        """
        content, structure = self._content[""].digest(), self._structure[""].digest()
        row: dict[str, Any] = {
            "step": self._step,
            "first_seq": self._first_seq,
            "events": self._events,
            "microbatches": self._microbatches,
            "ended": ended,
            "content": content,
            "structure": structure,
            "chain": digest_bytes(self._before + content + structure),
        }
        for group in self._seen:
            row[f"content_{group}"] = self._content[group].digest()
            row[f"structure_{group}"] = self._structure[group].digest()
        return row
