"""One run's events of a step, as arrays."""

from collections import Counter
from collections.abc import Callable
from copy import copy
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.store.events import one_piece
from fpdiff.store.run import RankRecord

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Site = dict[str, Any]

_KEY = ("phase", "kind", "module", "call", "op", "occurrence", "slot", "members")
"""What makes two sites of two runs the same point of the program; dtype and shape are beside it."""


_SCOPE = ("phase", "module", "call")
_OPERATOR = ("op", "members")
_CALL = (*_SCOPE, *_OPERATOR, "occurrence")
_PART = (*_OPERATOR, "kind", "slot")


class Keys:
    """Numbers what sites have in common, alike for both runs."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, site: Site) -> tuple[int, ...]:
        """Return the numbers of a site's key, of its description (dtype, shape) and, of an op.

        Those are of its scope, its call in there, its operator and its part of the call; -1 for
        what belongs to no op.
        """
        of_op = site["op"] is not None
        return (
            self._number(site, _KEY),
            self._number(site, ("dtype", "shape")),
            *(
                self._number(site, names) if of_op else -1
                for names in (_SCOPE, _CALL, _OPERATOR, _PART)
            ),
        )

    def _number(self, site: Site, names: tuple[str, ...]) -> int:
        values = (tuple(v) if isinstance(v := site[name], list) else v for name in names)
        return self._numbers.setdefault((names, *values), len(self._numbers))


class Sites:
    """The sites of one rank of one run, as arrays over their rows.

    What `Keys.number` numbers has the names that it has there.
    """

    def __init__(self, record: RankRecord, keys: Keys, lens: Lens) -> None:
        """Read the sites.

        Args:
            record: the rank.
            keys: numbers site keys; the same object for both runs.
            lens: which events are compared.

        Raises:
            StoreError: a file is damaged.
        """
        self.rows: list[Site] = record.sites().sort_by("site").to_pylist()
        self.number = np.array([row["site"] for row in self.rows], np.int64)
        numbers = np.array([keys.number(row) for row in self.rows], np.int64).reshape(-1, 6)
        self.key, self.description, self.scope, self.call, self.operator, self.part = numbers.T
        self.shown: Flags = np.array([lens.shows(row) for row in self.rows], bool)
        self._flags: dict[Callable[[Site], bool], Flags] = {}

    def having(self, test: Callable[[Site], bool]) -> Flags:
        """Return for each row whether it passes a test; remembered by the function."""
        if test not in self._flags:
            self._flags[test] = np.array([test(row) for row in self.rows], bool)
        return self._flags[test]


class Arm:
    """One run's events of a step, those that the lens shows.

    Attributes:
        table: the events.
        sites: the rank's sites; `site` holds each event's row in them.
        key: number of the site's key; `description` that of its dtype and shape.
        digest: as (events, 2) words, which compare faster than bytes.
        microbatch: of each event, as they pair; `own_microbatch` as they were recorded.
        is_cut: the rank's record ends here, before the program ended the step.
    """

    def __init__(
        self, record: RankRecord, step: int, sites: Sites, *, is_cut: bool = False
    ) -> None:
        """Read the events.

        Raises:
            StoreError: a file is damaged.
        """
        self.is_cut = is_cut
        self.sites = sites
        table = record.events(step)
        site = np.searchsorted(sites.number, ints(table["site"]))
        keep = sites.shown[site]
        self._all_seqs = ints(table["seq"])
        self._take(table, site, keep)

    def _take(self, table: pa.Table, site: Ints, keep: Flags) -> None:
        if not keep.all():
            table, site = table.filter(pa.array(keep)), site[keep]
        self.table = table
        self.site = site
        self.seq = ints(table["seq"])
        self.microbatch = self.own_microbatch = ints(table["microbatch"])
        self.key = self.sites.key[site]
        self.description = self.sites.description[site]
        self.digest = digest_words(one_piece(table["digest"]))

    @property
    def is_the_start(self) -> bool:
        """Whether the record starts with this step's first module, and has no op before it."""
        return len(self) > 0 and self.seq[0] == 0 and not is_outside(self.site_of(0))

    def without_prelude(self) -> "Arm":
        """Return the arm without the ops before the step's first module, as if it started there."""
        outside = self.sites.having(is_outside)[self.site]
        first = len(self) if outside.all() else int(np.argmin(outside))
        if not first:
            return self
        arm = copy(self)
        arm._all_seqs = self._all_seqs[self._all_seqs > self.seq[first - 1]]
        arm._take(self.table, self.site, np.arange(len(self)) >= first)
        return arm

    def with_microbatches(self, microbatch: Ints) -> "Arm":
        """Return the arm with other numbers of microbatches."""
        arm = copy(self)
        arm.microbatch = microbatch
        return arm

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.seq)

    def site_of(self, index: int) -> Site:
        """Return an event's row of SITES."""
        return self.sites.rows[int(self.site[index])]

    def content_of(self, index: int) -> tuple[int, ...]:
        """Return what is equal for events of equal bits, dtype and shape."""
        return *self.digest[index].tolist(), int(self.description[index])

    def call_of(self, index: int) -> tuple[Any, ...]:
        """Return what the events of one call of an op have in common."""
        site = self.site_of(index)
        names = ("phase", "module", "call", "op", "members", "occurrence")
        return int(self.microbatch[index]), *(site[name] for name in names)

    @cached_property
    def launches(self) -> dict[tuple[Any, ...], int]:
        """Number the calls of each collective, and all messages, in each group by their launch.

        A call's first event is of what it was given or told, when it was launched: what it got may
        come in another order.
        """
        numbers: dict[tuple[Any, ...], int] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for index in self._collectives:
            call = self.call_of(index)
            if call not in numbers:
                site = self.site_of(index)
                group = "" if ">" in site["members"] else site["op"], site["members"]
                numbers[call] = counts[group]
                counts[group] += 1
        return numbers

    @cached_property
    def asked_anybody(self) -> frozenset[str]:
        """Return the receivers, with tags, of messages that were received from anybody."""
        groups = {self.site_of(index)["members"] for index in self._collectives}
        routes = (group.partition(">") for group in groups)
        return frozenset(target for senders, _, target in routes if target and "," in senders)

    @cached_property
    def _collectives(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.sites.having(is_collective)[self.site]).tolist()
        return found

    def named(self, index: int) -> Ints:
        """Return the indices of the events that an event names as its inputs, as it names them.

        Those of an op are in the order of its arguments, if the arm `keeps_order`.
        """
        event, producer = self.edges
        first, end = np.searchsorted(event, [index, index + 1])
        result: Ints = producer[first:end]
        return result

    def direct(self, index: int) -> Ints:
        """Return the indices of the events that an event names as its inputs, in order."""
        result: Ints = np.unique(self.named(index))
        return result

    @cached_property
    def keeps_order(self) -> bool:
        """Whether inputs are in the order in which they are taken: older records sorted them."""
        event, wanted = self._inputs
        return bool(((np.diff(wanted) < 0) & (np.diff(event) == 0)).any())

    def producers(self, index: int) -> Ints:
        """Return the indices of all events that an event read: those it names come first."""
        direct = self.direct(index)
        first = int(self._span_start[index])
        between: Ints = np.arange(first, index, dtype=np.int64)
        return np.concatenate([direct, np.setdiff1d(between, direct, assume_unique=True)])

    def has(self, among: Ints, arm: "Arm", index: int) -> bool:
        """Return whether some of the events equal an event of an arm in bits, dtype and shape."""
        equal = (self.digest[among] == arm.digest[index]).all(axis=1)
        return bool((equal & (self.description[among] == arm.description[index])).any())

    def read_any(self, flags: Flags) -> Flags:
        """Return for each event whether it read an event that is flagged."""
        event, producer = self.edges
        before = np.concatenate([[0], np.cumsum(flags)])
        result: Flags = before[np.arange(len(self))] > before[self._span_start]
        result[event[flags[producer]]] = True
        return result

    def spread(self, flags: Flags, among: Flags) -> Flags:
        """Return the events that are flagged or, among some, that read such a one in the end."""
        event, producer = self.edges
        first = np.searchsorted(event, np.arange(len(self) + 1)).tolist()
        producers, starts = producer.tolist(), self._span_start.tolist()
        result, before = flags.tolist(), [0]
        for index in np.arange(len(self)).tolist():
            if among[index] and not result[index]:
                named = producers[first[index] : first[index + 1]]
                in_span = before[index] > before[starts[index]]
                result[index] = in_span or any(result[other] for other in named)
            before.append(before[index] + result[index])
        return np.array(result, bool)

    @cached_property
    def _inputs(self) -> tuple[Ints, Ints]:
        """Return (event, seq of what it read) for each input of each event."""
        inputs = one_piece(self.table["inputs"])
        counts = np.diff(np.asarray(inputs.offsets)) if len(inputs) else np.zeros(0, np.int64)
        event = np.repeat(np.arange(len(self), dtype=np.int64), counts)
        return event, self.seq[event] - np.asarray(inputs.flatten(), np.int64)

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Return (event, producer) as indices; what the lens hides or another step has is left."""
        event, wanted = self._inputs
        found = np.isin(wanted, self.seq)
        return event[found], np.searchsorted(self.seq, wanted[found])

    @cached_property
    def _span_start(self) -> Ints:
        """Return the first of the events just before each event that it read as well.

        An event that read something hidden counts as having read everything before it: what it
        had from there is not known.
        """
        span = ints(self.table["span"])
        start: Ints = np.searchsorted(self.seq, self.seq - span).astype(np.int64)
        if len(self._all_seqs) > len(self):
            hidden = np.setdiff1d(self._all_seqs, self.seq, assume_unique=True)
            in_span = np.searchsorted(hidden, self.seq) > np.searchsorted(hidden, self.seq - span)
            event, wanted = self._inputs
            in_span[event[np.isin(wanted, hidden)]] = True
            start[in_span] = 0
        return start


def ints(column: pa.ChunkedArray) -> Ints:
    """Return a column of whole numbers as an array."""
    result: Ints = column.to_numpy().astype(np.int64, copy=False)
    return result


def digest_words(digests: pa.Array) -> npt.NDArray[np.uint64]:
    """Return digests as (digests, 2) words, which compare faster than bytes."""
    storage = digests.storage if hasattr(digests, "storage") else digests
    words = np.frombuffer(storage.buffers()[1], np.uint64) if len(storage) else np.zeros(0, "u8")
    start = 2 * storage.offset
    return words[start : start + 2 * len(storage)].reshape(-1, 2)


def is_outside(site: Site) -> bool:
    """Return whether a site is an op outside of the modules, the backward and the optimizer."""
    return bool(site["op"] is not None and site["phase"] == "other")


def is_batch(site: Site) -> bool:
    """Return whether a site is an argument of a root module, and not of what is recomputed."""
    is_argument = site["op"] is None and site["slot"].startswith("arg.")
    return bool(site["kind"] == "input" and is_argument and site["phase"] != "recompute")


def is_frozen(site: Site) -> bool:
    """Return whether a site is of which parameters of a root are frozen."""
    return bool(site["kind"] == "training_flag" and site["slot"] == "requires_grad")


def is_at_parameter(site: Site) -> bool:
    """Return whether a site is an op of the backward at a parameter, and of no module's call.

    It accumulates the parameter's gradient, or hangs on that: a reducer, a hook.
    """
    is_op = site["op"] is not None and site["phase"] == "backward"
    return bool(is_op and site["module"] and not site["module_class"])


def is_collective(site: Site) -> bool:
    """Return whether a site belongs to a collective or a message."""
    return site["members"] is not None


@cache
def is_kind(*names: str) -> Callable[[Site], bool]:
    """Return the test whether a site is of one of some kinds; the same function each time."""
    return lambda site: bool(site["kind"] in names)


def is_start(site: Site) -> bool:
    """Return whether a site is of what a step starts from."""
    return bool(site["phase"] == "init")
