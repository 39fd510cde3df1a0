"""From candidates to origins and receivers, across ranks."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from fpdiff.fingerprint.bisect.describe import Describer
from fpdiff.fingerprint.bisect.findings import (
    Candidate,
    Place,
    RankFindings,
    first_finding,
    given,
)
from fpdiff.fingerprint.bisect.meetings import Meeting
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import (
    EnvironmentDifference,
    Origin,
    OriginGroup,
    Receiver,
)
from fpdiff.fingerprint.bisect.wording import ranks_text
from fpdiff.fingerprint.catalogue import base_name
from fpdiff.store.run import RankRecord, Run

_MAX_RANKS = 64
"""Among so many ranks at most a batch is looked for that another rank has: it takes reading."""

MAX_ORIGINS = 200
"""A verdict lists so many origins at most; `num_origins` says how many there are."""


class Groups:
    """Which ranks reduce their gradients with one another, as far as the runs' files say."""

    def __init__(self, *runs: Run) -> None:
        """Remember the runs; the first that knows a rank's groups is believed."""
        self._runs = runs
        self._known: dict[int, frozenset[int]] = {}
        self._sets: dict[int, tuple[list[Any], frozenset[int]]] = {}
        self._equal_sets: dict[frozenset[int], frozenset[int]] = {}

    def of(self, rank: int) -> frozenset[int]:
        """Return the ranks of a rank's largest process group; the rank alone if it has none."""
        if rank not in self._known:
            records = [run.ranks[rank] for run in self._runs if rank in run.ranks]
            found = [group for record in records for group in self._process_groups(record)]
            self._known[rank] = max(found, key=len, default=frozenset([rank]))
        return self._known[rank]

    def _process_groups(self, record: RankRecord) -> Iterator[frozenset[int]]:
        groups = record.environment.get("process_groups")
        for group in groups if isinstance(groups, list) else []:
            ranks = group.get("ranks") if isinstance(group, dict) else None
            if isinstance(ranks, list) and record.rank in (members := self._set_of(ranks)):
                yield members

    def _set_of(self, ranks: list[Any]) -> frozenset[int]:
        """Return a set, the same for the same list: each of thousands of ranks names thousands."""
        if id(ranks) not in self._sets:
            members = frozenset(rank for rank in ranks if isinstance(rank, int))
            # The list is kept, so that no other gets its id.
            self._sets[id(ranks)] = ranks, self._equal_sets.setdefault(members, members)
        return self._sets[id(ranks)][1]


class Attribution:
    """Attributes the differences of all ranks."""

    def __init__(
        self,
        found: list[RankFindings],
        *,
        groups: Groups,
        ranks: list[int],
        rung: str,
        environment: list[EnvironmentDifference],
        rehashed: bool,
        tiers: dict[int, RankTier],
    ) -> None:
        """Remember the findings.

        Args:
            found: of every rank that differs.
            groups: who reduces with whom.
            ranks: those compared.
            rung: what was compared.
            environment: entries that differ.
            rehashed: both runs digested again what was read.
            tiers: of every rank compared.
        """
        self._rehashed = rehashed
        self._tiers = tiers
        self._given: dict[tuple[int, int], frozenset[Meeting]] = {}
        self._reductions: dict[int, _Source | None] = {}
        self._in_step: dict[int, frozenset[int]] = {}
        self._senders: dict[tuple[int, frozenset[int]], list[int]] = {}
        self._found = {f.rank: f for f in found}
        self._groups = groups
        self._ranks = frozenset(ranks)
        self._rung = rung
        self._environment = [d for d in environment if d.decides]
        self._sources = {f.rank: self._sources_of(f) for f in found}
        for f in found:
            if f.is_alike and not all(self._sources[f.rank]):
                # Not all was received: its own events have to tell.
                own = first_finding(f.rank, f.tier)
                f.tier.release()
                assert own is not None
                self._found[f.rank] = own
                self._sources[f.rank] = self._sources_of(own)

    @cached_property
    def receivers(self) -> list[Receiver]:
        """Ranks that took in what others sent."""
        return [
            self._receiver(f, sources)
            for f in self._found.values()
            if (sources := [s for s in self._sources[f.rank] if s is not None])
            and not self._got_back(f.rank, sources)
        ]

    def _got_back(self, rank: int, sources: "list[_Source]") -> bool:
        """Return whether all that a rank received began on that rank."""
        if not self._candidates[rank] or any(source.missing for source in sources):
            return False
        todo = {sender for source in sources for sender in source.senders}
        seen = {rank}
        while todo - seen:
            sender = (todo - seen).pop()
            seen.add(sender)
            if sender not in self._found or self._candidates[sender]:
                return False
            own = [source for source in self._sources[sender] if source is not None]
            if any(source.missing for source in own):
                return False
            todo |= {one for source in own for one in source.senders}
        return True

    @cached_property
    def num_origins(self) -> int:
        """How many origins there are."""
        return sum(map(len, self._candidates.values()))

    def origins(self) -> tuple[list[Origin], list[OriginGroup]]:
        """Return the origins, the earliest first: by step, then by how early a rank has its first.

        And those together that one cause may have made. When there are too many, each rank keeps
        the first of each group, the earliest groups, and as many of the others as may be.

        Raises:
            StoreError: a file is damaged.
        """
        order = sorted(
            (f for f in self._found.values() if self._candidates[f.rank]),
            key=lambda f: (f.step, *self._candidates[f.rank][0].begin, f.rank),
        )[:MAX_ORIGINS]
        share = self.num_origins
        if share > MAX_ORIGINS:
            share = MAX_ORIGINS // len(order)
        origins: list[Origin] = []
        groups: list[OriginGroup] = []
        for found in order:
            describer = Describer(
                found,
                rung=self._rung,
                environment=[d for d in self._environment if found.rank in d.ranks],
                group=self._groups.of(found.rank),
                is_alone=self._is_alone(found),
                rehashed=self._rehashed,
                other_rank=self._other_rank,
            )
            own, alike = describer.describe(self._candidates[found.rank], share)
            groups += [
                replace(group, origins=[len(origins) + place for place in group.origins])
                for group in alike
            ]
            origins += own
            found.tier.release()
        return origins, groups

    def _other_rank(self, found: RankFindings) -> str | None:
        """Say which other rank had, in A or else in B, the batch that a rank has in B."""
        own = found.tier.batches()
        wanted = own[1].get(found.step)
        if wanted is None or len(self._tiers) > _MAX_RANKS:
            return None
        same_in_b = None
        for rank, tier in self._tiers.items():
            if rank == found.rank:
                continue
            batches = [batches.get(found.step) for batches in tier.batches()]
            tier.release()
            if batches[0] == wanted:
                return f"rank {found.rank} of B has the batch of rank {rank} of A"
            if batches[1] == wanted and batches[0] != own[0].get(found.step):
                same_in_b = same_in_b or f"ranks {found.rank} and {rank} of B have the same batch"
        return same_in_b

    @cached_property
    def _candidates(self) -> dict[int, list[Candidate]]:
        return {
            rank: [
                c for c, source in zip(f.candidates, self._sources[rank], strict=True) if not source
            ]
            for rank, f in self._found.items()
        }

    @cached_property
    def _sending(self) -> dict[int, list[int]]:
        """Return, by step, the ranks whose own gradients first differ in it."""
        sending = defaultdict(list)
        for f in self._found.values():
            # Where own gradients are not recorded (sharded ones, say) any difference may be sent.
            if f.sent or (not f.has_local and any(not c.reduced for c in f.candidates)):
                sending[f.step].append(f.rank)
        return sending

    @cached_property
    def _buffers(self) -> dict[Place, dict[int, int]]:
        """Return, by buffer, the ranks on which it differs first, and in which step."""
        buffers: dict[Place, dict[int, int]] = defaultdict(dict)
        for f in self._found.values():
            for candidate in f.candidates:
                if candidate.buffer is not None:
                    buffers[candidate.buffer][f.rank] = f.step
        return buffers

    def _sources_of(self, found: RankFindings) -> "list[_Source | None]":
        return [self._source(found, candidate) for candidate in found.candidates]

    def _source(self, found: RankFindings, candidate: Candidate) -> "_Source | None":
        """Return where a candidate was received from, None if it is an origin."""
        if candidate.meeting is not None:
            group = candidate.meeting.ranks - {found.rank}
            senders = [r for r in group if self._gave(r, found.step, candidate.meeting)]
        elif candidate.reduced:
            if found.rank not in self._reductions:
                group = self._groups.of(found.rank)
                senders = [r for r in self._reducing(found.step, group) if r != found.rank]
                self._reductions[found.rank] = self._of(
                    found.step, senders, group - {found.rank}, None
                )
            return self._reductions[found.rank]
        elif candidate.buffer is not None:
            # DistributedDataParallel broadcasts them in C++, which the rung layer does not see.
            group = self._groups.of(found.rank)
            steps = self._buffers[candidate.buffer].items()
            senders = [rank for rank, step in steps if step < found.step and rank in group]
            return _Source(sorted(senders), [], None, candidate.buffer) if senders else None
        elif candidate.microbatches is not None:
            # Its gradients were not finite, say, and a step was skipped for that.
            group = self._groups.of(found.rank)
            senders = self._sending_before(found, candidate, group - {found.rank})
            return _Source(senders, [], None) if senders else None
        else:
            return None
        return self._of(found.step, senders, group, candidate.meeting)

    def _of(
        self, step: int, senders: list[int], group: frozenset[int], meeting: Meeting | None
    ) -> "_Source | None":
        # Without senders, the collective is to blame only if all that took part were compared.
        missing = [] if senders else sorted(group - self._ranks_in(step))
        return _Source(sorted(senders), missing, meeting) if senders or missing else None

    def _ranks_in(self, step: int) -> frozenset[int]:
        """Return the ranks of which a step was compared: one may have ended before it."""
        if step not in self._in_step:
            self._in_step[step] = frozenset(
                rank for rank in self._ranks if step in self._tiers[rank].steps
            )
        return self._in_step[step]

    def _gave(self, rank: int, step: int, meeting: Meeting) -> bool:
        """Return whether a rank gave something that differs to a collective."""
        peer = self._found.get(rank)
        if peer is None or peer.step > step:
            # All that differs there may have led to nothing, on that rank.
            return bool(meeting.among(self._given_idly(rank, step)))
        if peer.step < step:  # What it gave since may differ too: its events are not at hand.
            later = peer.tier.differences.get(step)
            # It may do in another step what the others do in this one: it has skipped one, say.
            return rank not in self._ranks_in(step) or (later is not None and later.any)
        return bool(meeting.among(peer.given))

    def _given_idly(self, rank: int, step: int) -> frozenset[Meeting]:
        if (rank, step) not in self._given:
            tier = self._tiers.get(rank)
            differs = tier is not None and step in tier.differences
            self._given[rank, step] = frozenset()
            if tier is not None and differs:
                self._given[rank, step] = given(tier.aligned(step))
                tier.release()
        return self._given[rank, step]

    def _reducing(self, step: int, group: frozenset[int]) -> list[int]:
        """Return the ranks of a group whose own gradients differ in a step.

        Any of their gradients will do: clipping by the norm couples all of them.
        """
        if (step, group) not in self._senders:
            senders = [rank for rank in self._sending[step] if rank in group]
            for rank in group & self._found.keys():
                peer = self._found[rank]
                if peer.step < step:
                    later = peer.tier.differences.get(step)
                    differs = later is not None and later.backward
                    senders += [rank] if differs or rank not in self._ranks_in(step) else []
            self._senders[step, group] = senders
        return self._senders[step, group]

    def _is_alone(self, found: RankFindings) -> bool:
        """Return whether no other rank of a rank's group got another gradient in its step.

        A reduction gives all ranks the same: what one alone got has changed after it.
        """
        peers = (self._found.get(rank) for rank in self._groups.of(found.rank) - {found.rank})
        return not any(
            peer.step < found.step or (peer.step == found.step and peer.received)
            for peer in peers
            if peer is not None
        )

    def _sending_before(
        self, found: RankFindings, candidate: Candidate, group: frozenset[int]
    ) -> list[int]:
        """Return the ranks of a group that sent what began earlier in the step than a candidate."""

        def began(peer: RankFindings) -> bool:
            # What may follow from the number of microbatches comes after them in the list.
            own = takewhile(lambda c: c.microbatches is None, peer.candidates)
            return any(not c.meeting and not c.reduced and c.begin < candidate.begin for c in own)

        peers = (self._found[rank] for rank in self._reducing(found.step, group))
        return [peer.rank for peer in peers if peer.step < found.step or began(peer)]

    def _receiver(self, found: RankFindings, sources: "list[_Source]") -> Receiver:
        senders = sorted({rank for source in sources for rank in source.senders})
        missing = sorted({rank for source in sources for rank in source.missing})
        meeting = sources[0].meeting
        if meeting is not None:
            number = "" if meeting.number is None else f", call {meeting.number}"
            where = "outside the model" if meeting.phase == "other" else f"in the {meeting.phase}"
            via = f"{base_name(meeting.op)} {where} (ranks {meeting.group}{number})"
        elif (buffer := sources[0].buffer) is not None:
            via = f"the broadcast of buffer {'.'.join(filter(None, buffer))}"
        else:
            via = self._reduction(found, senders)
        if not senders:
            via += f" with {ranks_text(missing)}, {self._why_missing(found.step, missing)}"
        return Receiver(rank=found.rank, step=found.step, from_=senders, via=via)

    def _why_missing(self, step: int, ranks: list[int]) -> str:
        """Say why a step of some ranks was not compared."""
        tiers = [self._tiers.get(rank) for rank in ranks]
        have = [tuple(step in own for own in tier.all_steps) if tier else None for tier in tiers]
        for name, which in (("A", (True, False)), ("B", (False, True))):
            if all(own == which for own in have):
                return f"whose step {step} only {name} has"
        return "not compared here"

    def _reduction(self, found: RankFindings, senders: list[int]) -> str:
        sent = frozenset[Place]().union(*(self._found[rank].sent for rank in senders))
        # Those that were sent, if any of them is among what was received; else what was.
        places = sorted(found.received & sent or found.received)
        names = [f"{m}.{s.removeprefix('grad.')}".lstrip(".") for m, s in places]
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"the reduction of the gradients of {', '.join(names[:2])}{rest}"


@dataclass(frozen=True)
class _Source:
    """Who sent what a rank received, or who may have and was not compared."""

    senders: list[int]
    missing: list[int]
    meeting: Meeting | None
    buffer: Place | None = None
