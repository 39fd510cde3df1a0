"""What activation checkpointing computes again in the backward is what the forward computed.

If it is not, the gradients are those of another function than the one whose loss was taken.

A recomputation runs its calls in another order than the forward did, leaves out what it does not
need, and may be asked for in the backward of any module. So an event is looked for by what it is
(an output of that module; a result of that operator, of that shape) among all such events of the
step's forward, and not by its place in the program.
"""

import numpy as np

from fpdiff.fingerprint.bisect.arm import Ints
from fpdiff.fingerprint.bisect.wording import counted
from fpdiff.fingerprint.catalogue import base_name
from fpdiff.fingerprint.certify.ledger import Ledger
from fpdiff.fingerprint.certify.sites import Site, Sites, described
from fpdiff.fingerprint.certify.stream import StepEvents

# Not what is written in place: a normalisation's running statistics are rightly moved on twice,
# and what else is written shows in the results of those that read it.
_OF_OPS = frozenset({"result", "number", "arguments", "generator"})


class RecomputeCheck:
    """Checks the recomputations of all ranks."""

    def __init__(self, sites: Sites, ledger: Ledger) -> None:
        """Start with nothing checked."""
        self._sites = sites
        self._ledger = ledger
        self._num_events = 0
        self._num_alone = 0  # the forward has nothing of their kind

    def add(self, rank: int, events: StepEvents) -> None:
        """Check a step of a rank."""
        again = np.flatnonzero(self._sites.column(_is_recomputed)[events.site] == 1)
        if not len(again):
            return
        what = self._sites.column(_what)[events.site]
        before = np.flatnonzero(self._sites.column(_is_forward)[events.site] == 1)
        known = np.isin(what[again], what[before])
        self._num_alone += int((~known).sum())
        self._num_events += int(known.sum())
        again = again[known]
        value = self._values(events, what)
        other = again[~np.isin(value[again], value[before])]
        if len(other):
            text = _told(self._sites.rows[int(events.site[other[0]])])
            self._ledger.add("recomputation", text, rank=rank, step=events.step)
        elif len(mixed := self._mixed_up(events, value, what, again)):
            module = self._sites.rows[int(events.site[mixed[0]])].module
            text = f"the recomputation of {module} gave what another call of it had given"
            self._ledger.add("recomputation", text, rank=rank, step=events.step)

    def rests_on(self) -> str:
        """Say what was compared, "" if nothing."""
        if not self._num_events:
            return ""
        told = f"{counted(self._num_events, 'recomputed event')} looked for in the forward"
        alone = f", {self._num_alone:,} of a kind that it has not" if self._num_alone else ""
        return told + alone

    def _values(self, events: StepEvents, what: Ints) -> Ints:
        """Return a number for each event, equal for equal bits of the same thing."""
        description = self._sites.column(described)[events.site]
        words = [column.astype(np.uint64) for column in (what, description)]
        rows = np.column_stack([*words, events.digest])
        value: Ints = np.unique(rows.view("V32").ravel(), return_inverse=True)[1]
        return value

    def _mixed_up(self, events: StepEvents, value: Ints, what: Ints, again: Ints) -> Ints:
        """Return recomputed outputs that are more often there than they were in the forward.

        That is so where a call reads a buffer that a later one has filled anew. Only modules all
        of whose calls were recomputed, once each, are looked at.
        """
        outputs = self._sites.column(_is_output)[events.site] == 1
        again = again[outputs[again]]
        trained = self._sites.column(_is_trained)[events.site] == 1
        before = np.flatnonzero(outputs & trained & np.isin(what, what[again]))
        size = int(max(value.max(), what.max())) + 1
        calls = np.bincount(what[again], minlength=size) == np.bincount(
            what[before], minlength=size
        )
        more = np.bincount(value[again], minlength=size) > np.bincount(
            value[before], minlength=size
        )
        result: Ints = again[calls[what[again]] & more[value[again]]]
        return result


def _told(site: Site) -> str:
    point = site.point
    if point.kind == "output":
        return f"the recomputation of {site.module} gave another {point.slot} than its forward"
    op = base_name(point.op or "") + (f" ({site.source})" if site.source else "")
    if point.kind == "generator":
        what = f"{op} drew from another state of the generator"
    elif point.kind == "arguments":
        what = f"{op} had another value of {point.slot.replace(',', ' or ')}"
    else:
        what = f"{op} gave another {point.slot}"
    return f"in the recomputation of {site.module}, {what} than in its forward"


# Columns of sites


def _what(site: Site) -> tuple[object, ...] | None:
    point = site.point
    if point.kind == "output" and point.op is None:
        return point.module, point.slot
    if point.kind in _OF_OPS and point.op is not None:
        return point.kind, point.op, point.slot, site.dtype, site.shape
    return None


def _is_recomputed(site: Site) -> bool:
    return site.point.phase == "recompute" and _what(site) is not None


def _is_forward(site: Site) -> bool:
    # Reentrant checkpointing runs the forward without gradients.
    return site.point.phase in ("forward", "eval") and _what(site) is not None


def _is_trained(site: Site) -> bool:
    return site.point.phase == "forward"


def _is_output(site: Site) -> bool:
    return site.point.kind == "output" and site.point.op is None
