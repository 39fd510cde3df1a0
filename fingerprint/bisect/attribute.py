"""From candidates to origins and receivers, across ranks."""

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from fpdiff.fingerprint.bisect.describe import Describer
from fpdiff.fingerprint.bisect.findings import Candidate, Place, RankFindings
from fpdiff.fingerprint.bisect.preflight import ranks_text
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference, Origin, Receiver
from fpdiff.store.run import RankRecord, Run

MAX_ORIGINS = 200
"""A verdict lists so many origins at most; `num_origins` says how many there are."""


class Groups:
    """Which ranks reduce their gradients with one another, as far as the runs' files say."""

    def __init__(self, *runs: Run) -> None:
        """Remember the runs; the first that knows a rank's groups is believed."""
        self._runs = runs
        self._known: dict[int, frozenset[int]] = {}

    def of(self, rank: int) -> frozenset[int]:
        """Return the ranks of a rank's largest process group; the rank alone if it has none."""
        if rank not in self._known:
            records = [run.ranks[rank] for run in self._runs if rank in run.ranks]
            found = [group for record in records for group in _process_groups(record)]
            self._known[rank] = max(found, key=len, default=frozenset([rank]))
            # Equal sets become one: each of thousands of ranks names thousands.
            for other in self._known[rank]:
                if self._known.get(other) == self._known[rank]:
                    self._known[rank] = self._known[other]
                    break
        return self._known[rank]


def _process_groups(record: RankRecord) -> Iterator[frozenset[int]]:
    environment = record.info.get("environment")
    groups = environment.get("process_groups") if isinstance(environment, dict) else None
    for group in groups if isinstance(groups, list) else []:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and record.rank in ranks:
            yield frozenset(rank for rank in ranks if isinstance(rank, int))


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
    ) -> None:
        """Remember the findings.

        Args:
            found: of every rank that differs.
            groups: who reduces with whom.
            ranks: those compared.
            rung: what was compared.
            environment: entries that differ.
        """
        self._found = {f.rank: f for f in found}
        self._groups = groups
        self._ranks = frozenset(ranks)
        self._rung = rung
        self._environment = [d for d in environment if d.decides]
        self._senders = {f.rank: self._senders_to(f) for f in found}
        # Without senders, a reduction is to blame only if all that took part were compared.
        self._missing = {
            f.rank: [] if self._senders[f.rank] else self._missing_from(f) for f in found
        }

    @cached_property
    def receivers(self) -> list[Receiver]:
        """Ranks that took in what others sent."""
        return [
            self._receiver(f, senders)
            for f in self._found.values()
            if (senders := self._senders[f.rank]) or self._missing[f.rank]
        ]

    @cached_property
    def num_origins(self) -> int:
        """How many origins there are."""
        return sum(map(len, self._candidates.values()))

    def origins(self) -> list[Origin]:
        """Return the origins, the earliest first: by step, then by how early a rank has its first.

        When there are too many, each rank keeps its earliest.

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
        for found in order:
            describer = Describer(
                found,
                rung=self._rung,
                environment=[d for d in self._environment if found.rank in d.ranks],
                group=self._groups.of(found.rank),
            )
            origins += [describer.origin(c) for c in self._candidates[found.rank][:share]]
            found.tier.release()
        return origins

    @cached_property
    def _candidates(self) -> dict[int, list[Candidate]]:
        return {
            rank: [c for c in f.candidates if not (c.reduced and self._is_received(rank))]
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

    def _senders_to(self, found: RankFindings) -> list[int]:
        """Return the ranks of a rank's group whose own gradients differ in the same step.

        Any of their gradients will do: clipping by the norm couples all of them.
        """
        if not any(c.reduced for c in found.candidates):
            return []
        group = self._groups.of(found.rank) - {found.rank}
        senders = [rank for rank in self._sending[found.step] if rank in group]
        for rank in group & self._found.keys():
            peer = self._found[rank]
            if peer.step < found.step:
                later = peer.tier.differences.get(found.step)
                senders += [rank] if later is not None and later.backward else []
        return sorted(senders)

    def _missing_from(self, found: RankFindings) -> list[int]:
        """Return who reduced gradients with a rank and was not compared, if it received any."""
        if not any(c.reduced for c in found.candidates):
            return []
        return sorted(self._groups.of(found.rank) - self._ranks)

    def _is_received(self, rank: int) -> bool:
        return bool(self._senders[rank] or self._missing[rank])

    def _receiver(self, found: RankFindings, senders: list[int]) -> Receiver:
        sent = frozenset[Place]().union(*(self._found[rank].sent for rank in senders))
        # Those that were sent, if any of them is among what was received; else what was.
        places = sorted(found.received & sent or found.received)
        names = [f"{m}.{s.removeprefix('grad.')}".lstrip(".") for m, s in places]
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        via = f"the reduction of the gradients of {', '.join(names[:2])}{rest}"
        if not senders:
            missing = ranks_text(self._missing[found.rank])
            via += f" with {missing}, not compared here"
        return Receiver(rank=found.rank, step=found.step, from_=senders, via=via)
