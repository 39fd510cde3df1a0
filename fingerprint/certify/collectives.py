"""Collectives: all members called each of them alike, and got the same where that must be.

Ranks come one by one, so for each group of members and each step only the first member's results
are kept, and with what sets of calls the others came. A group whose members have all come is
judged and let go.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fpdiff.fingerprint.bisect.arm import Flags, Ints
from fpdiff.fingerprint.bisect.wording import counted, ranks_text
from fpdiff.fingerprint.catalogue import base_name
from fpdiff.fingerprint.certify.ledger import Ledger
from fpdiff.fingerprint.certify.rank import Rank
from fpdiff.fingerprint.certify.sites import Site, Sites, described
from fpdiff.fingerprint.certify.stream import StepEvents

_MICROBATCH = 32
"""Calls and results are numbered by site; the bits from here on are the microbatch."""

_ANY_SOURCE = "c10d.recv_any_source_"

_Contents = npt.NDArray[np.void]
_Messages = dict[int, _Contents]
"""What the messages of a step held, by step."""


@dataclass
class _Meetings:
    """What the members of a group did in a step, as far as they have come.

    `calls` and `results` lead from sorted numbers, as bytes, to the ranks that have just these.
    The arrays hold each result's number, description and digest, and the rank that had it first.
    """

    calls: dict[bytes, list[int]] = field(default_factory=dict)
    results: dict[bytes, list[int]] = field(default_factory=dict)
    number: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    description: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    digest: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    first: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class CollectiveCheck:
    """Checks the collectives of all ranks, handed over rank by rank."""

    def __init__(self, sites: Sites, ranks: dict[int, Rank], ledger: Ledger) -> None:
        """Prepare for the ranks that are going to come."""
        self._sites = sites
        self._ranks = ranks
        self._ledger = ledger
        self._groups: dict[str, dict[int, _Meetings]] = {}
        self._sent: dict[str, _Messages] = {}  # by pair of ranks
        self._received: dict[str, _Messages] = {}
        self._last: dict[str, int] = {}
        self._any_source: set[tuple[int, int]] = set()  # (rank, step)
        self._num_calls = 0  # of all members, where two or more were read
        self._num_results = 0  # compared between two members
        self._num_unread = 0  # that some member has and another has not
        self._num_messages = 0

    def add(self, rank: int, events: StepEvents) -> None:
        """Take in the events of a step of a rank."""
        group = self._sites.column(_members)[events.site]
        for number in np.unique(group[group >= 0]).tolist():
            at = np.flatnonzero(group == number)
            members = self._sites.rows[int(events.site[at[0]])].point.members or ""
            if ">" in members:
                self._note_messages(members, events, at)
            else:
                self._meet(rank, members, events, at)

    def rank_done(self, rank: int) -> None:
        """Judge the groups whose members have all come."""
        for members in list(self._groups):
            if self._last_of(members) <= rank:
                for step, meetings in self._groups.pop(members).items():
                    self._judge(members, step, meetings)
        for pair in {*self._sent, *self._received}:
            if self._last_of(pair) <= rank:
                self._judge_messages(pair, self._sent.pop(pair, {}), self._received.pop(pair, {}))

    def rests_on(self) -> str:
        """Say what was compared, "" if nothing."""
        told = []
        if self._num_calls:
            told += [counted(self._num_calls, "call")]
            told += [f"{counted(self._num_results, 'result')} compared"]
        if self._num_messages:
            told += [counted(self._num_messages, "message")]
        if told and self._num_unread:
            told += [f"{self._num_unread:,} not read where they should be"]
        return ", ".join(told)

    def _last_of(self, members: str) -> int:
        """Return the last rank of a group that is going to come."""
        if members not in self._last:
            known = (number for number in _numbers(members) if number in self._ranks)
            self._last[members] = max(known, default=-1)
        return self._last[members]

    # Taking in

    def _meet(self, rank: int, members: str, events: StepEvents, at: Ints) -> None:
        sites = self._sites
        site, microbatch = events.site[at], events.microbatch[at] << _MICROBATCH
        if (sites.column(_is_any_source)[site] == 1).any():
            self._any_source.add((rank, events.step))
        meetings = self._groups.setdefault(members, {}).setdefault(events.step, _Meetings())
        calls = np.unique(sites.column(_call)[site] | microbatch)
        meetings.calls.setdefault(calls.tobytes(), []).append(rank)
        counts = sites.column(_result)[site]
        keep = counts >= 0
        number, order = np.unique((counts | microbatch)[keep], return_index=True)
        at = at[keep][order]
        description = sites.column(described)[events.site[at]]
        digest = events.digest[at]
        # Of what is given only the description must agree.
        digest[sites.column(_is_sent)[events.site[at]] == 1] = 0
        got = number[sites.column(_is_received)[events.site[at]] == 1]
        meetings.results.setdefault(got.tobytes(), []).append(rank)
        self._compare(meetings, rank, events, at, number, description, digest)

    def _compare(
        self,
        meetings: _Meetings,
        rank: int,
        events: StepEvents,
        at: Ints,
        number: Ints,
        description: Ints,
        digest: npt.NDArray[np.uint64],
    ) -> None:
        _, there, here = np.intersect1d(
            meetings.number, number, assume_unique=True, return_indices=True
        )
        self._num_results += len(here)
        described = meetings.description[there] == description[here]
        same: Flags = described & (meetings.digest[there] == digest[here]).all(axis=1)
        for index in np.flatnonzero(~same).tolist():
            site = self._sites.rows[int(events.site[at[here[index]]])]
            first = int(meetings.first[there[index]])
            what = _difference(site, is_described=bool(described[index]))
            text = f"{_name(site)}: the rank {what} rank {first}"
            self._ledger.add("collectives", text, rank=rank, step=events.step)
        new = np.setdiff1d(np.arange(len(number)), here, assume_unique=True)
        if len(new):
            order = np.argsort(np.concatenate([meetings.number, number[new]]))
            owner = np.full(len(new), rank, np.int64)
            meetings.number = np.concatenate([meetings.number, number[new]])[order]
            meetings.description = np.concatenate([meetings.description, description[new]])[order]
            meetings.digest = np.concatenate([meetings.digest, digest[new]])[order]
            meetings.first = np.concatenate([meetings.first, owner])[order]

    def _note_messages(self, pair: str, events: StepEvents, at: Ints) -> None:
        for test, notes in ((_is_sent, self._sent), (_is_received, self._received)):
            own = at[self._sites.column(test)[events.site[at]] == 1]
            if len(own):
                notes.setdefault(pair, {})[events.step] = self._contents(events, own)

    def _contents(self, events: StepEvents, at: Ints) -> _Contents:
        """Return what each message held: dtype and digest, shapes may differ."""
        dtype = self._sites.column(_dtype)[events.site[at]].astype(np.uint64)
        return np.column_stack([dtype, events.digest[at]]).view("V24").ravel()

    # Judging

    def _judge(self, members: str, step: int, meetings: _Meetings) -> None:
        present = [n for n in _numbers(members) if n in self._ranks and step in self._ranks[n].read]
        came = {rank for ranks in meetings.calls.values() for rank in ranks}
        if absent := [rank for rank in present if rank not in came]:
            meetings.calls.setdefault(b"", []).extend(absent)
        if len(present) > 1:
            self._num_calls += sum(
                len(_unpack(calls)) * len(ranks) for calls, ranks in meetings.calls.items()
            )
        if len(meetings.calls) > 1:
            self._name_missing_calls(members, step, meetings)
        if len(meetings.results) > 1:
            self._name_missing_results(step, meetings)

    def _name_missing_calls(self, members: str, step: int, meetings: _Meetings) -> None:
        """Name calls that not all members made.

        Where each rank made as many calls of an operator, only the phase or microbatch differs in
        which the recorder saw them. Before the first module of a run, nothing is recorded, so the
        first step of a rank may begin in the middle of what comes before the model.
        """
        at_start = any(
            self._ranks[rank].steps[:1] == [step]
            for ranks in meetings.calls.values()
            for rank in ranks
        )
        counts = {}
        for calls, ranks in meetings.calls.items():
            made = Counter(self._operators(calls, without_other=at_start))
            for rank in ranks:
                counts[rank] = made
        who = ranks_text(_numbers(members))
        for op in sorted({op for made in counts.values() for op in made}):
            most = max(made[op] for made in counts.values())
            for rank, made in counts.items():
                if made[op] < most:
                    text = f"it made {made[op]:,} of the {counted(most, 'call')} of {op} of {who}"
                    self._ledger.add("collectives", text, rank=rank, step=step)

    def _operators(self, calls: bytes, *, without_other: bool) -> Iterator[str]:
        names = self._call_names()
        for number in np.frombuffer(calls, np.int64).tolist():
            phase, op = names[number & ((1 << _MICROBATCH) - 1)]
            if not (without_other and phase == "other"):
                yield op

    def _call_names(self) -> dict[int, tuple[str, str]]:
        column = self._sites.column(_call)
        rows = self._sites.rows
        numbers, first = np.unique(column, return_index=True)
        return {
            number: (rows[index].point.phase, base_name(rows[index].point.op or ""))
            for number, index in zip(numbers.tolist(), first.tolist(), strict=True)
        }

    def _name_missing_results(self, step: int, meetings: _Meetings) -> None:
        """Name results that a member lacks, though it made the call and saw all that it did."""
        by_rank = {r: set(_unpack(made)) for made, ranks in meetings.results.items() for r in ranks}
        union = set().union(*by_rank.values())
        column = self._sites.column(_result)
        for rank, own in by_rank.items():
            missing = sorted(union - own)
            self._num_unread += len(missing)
            known = self._ranks[rank]
            if known.blind_spots or known.state != "finished":
                continue
            for number in missing:
                low = number & ((1 << _MICROBATCH) - 1)
                site = self._sites.rows[int(np.flatnonzero(column == low)[0])]
                text = f"{_name(site)}: the rank has no event of what it received"
                self._ledger.add("collectives", text, rank=rank, step=step)

    def _judge_messages(self, pair: str, sent: _Messages, received: _Messages) -> None:
        """Compare what one rank sent to another with what arrived.

        Tags may change the order. What is sent between steps may arrive within one, so the steps
        before and after count too.
        """
        numbers = _numbers(pair)
        if len(numbers) != 2 or not all(number in self._ranks for number in numbers):
            return
        sender, receiver = numbers
        known = self._ranks[receiver]
        both = self._ranks[sender].read & known.read
        for step in sorted({*sent, *received} & both):
            if (receiver, step) in self._any_source:
                continue
            near = [step, step - 1, step + 1]
            gave, got = _all_of(sent, [step]), _all_of(received, [step])
            strange = (got - _all_of(sent, near)).total()
            lost = (gave - _all_of(received, near)).total()
            self._num_messages += gave.total()
            self._num_unread += max(0, lost - strange)
            if strange:
                text = f"{counted(strange, 'message')} from rank {sender} arrived with other bits"
                self._ledger.add("collectives", text, rank=receiver, step=step)
            elif lost and not known.blind_spots and known.state == "finished":
                text = f"{counted(lost, 'message')} from rank {sender} never arrived"
                self._ledger.add("collectives", text, rank=receiver, step=step)


def _all_of(messages: _Messages, steps: list[int]) -> "Counter[bytes]":
    """Return what was in the messages of some steps, and how often."""
    return Counter(content for step in steps for content in _listed(messages.get(step)))


def _listed(contents: _Contents | None) -> list[bytes]:
    return [] if contents is None else contents.tolist()


def _numbers(members: str) -> list[int]:
    return [int(n) for n in members.replace(">", ",").split(",") if n.isdigit()]


def _unpack(numbers: bytes) -> list[int]:
    found: list[int] = np.frombuffer(numbers, np.int64).tolist()
    return found


def _name(site: Site) -> str:
    point = site.point
    who = ranks_text(_numbers(point.members or ""))
    where = f"in the {point.phase}, call {site.occurrence}, {who}"
    return f"{base_name(point.op or '')} ({where})"


def _difference(site: Site, *, is_described: bool) -> str:
    verb = "gave" if site.point.kind == "sent" else "received"
    if not is_described:
        return f"{verb} {site.kind}, unlike"
    if site.point.kind == "arguments":
        return f"had other arguments ({site.point.slot}) than"
    return f"{verb} other bits than"


def _operation(site: Site) -> str:
    """Return an operator's name without what spells it: `allreduce`, `allgather`."""
    return base_name(site.point.op or "").rpartition(".")[2].replace("_", "")


def _reduces(site: Site) -> bool:
    return "reduce" in _operation(site)


def _gets_the_same(site: Site) -> bool:
    return _operation(site).startswith(("allreduce", "allgather", "broadcast"))


# Columns of sites


def _members(site: Site) -> str | None:
    return site.point.members


def _is_any_source(site: Site) -> bool:
    return base_name(site.point.op or "") == _ANY_SOURCE


def _call(site: Site) -> tuple[object, ...]:
    point = site.point
    return point.phase, point.op, point.members, site.occurrence


def _result(site: Site) -> tuple[object, ...] | None:
    """Return what is compared between members, None for what may well differ."""
    kind = site.point.kind
    agrees = kind == "received" and _gets_the_same(site)
    agrees |= kind in ("sent", "arguments") and _reduces(site)
    return (site.point, site.occurrence) if agrees and site.point.members is not None else None


def _dtype(site: Site) -> str:
    return f"dtype {site.dtype}"


def _is_sent(site: Site) -> bool:
    return site.point.kind == "sent"


def _is_received(site: Site) -> bool:
    return site.point.kind == "received"
