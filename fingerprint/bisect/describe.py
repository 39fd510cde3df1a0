"""An origin in full: its class, its two sides, what it read, and the evidence."""

from collections.abc import Callable, Hashable
from functools import cached_property
from itertools import chain, takewhile, zip_longest
from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect import advice, evidence
from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.alike import MAX_NAMES, Sorts, grouped, names_of, patterns
from fpdiff.fingerprint.bisect.arm import (
    Arm,
    Ints,
    Site,
    is_batch,
    is_collective,
    is_kind,
)
from fpdiff.fingerprint.bisect.classify import (
    Facts,
    Kind,
    Reduction,
    classify,
    component_of,
    described,
    moved,
    of_microbatches,
    of_other_root,
    op_of,
)
from fpdiff.fingerprint.bisect.findings import Candidate, RankFindings
from fpdiff.fingerprint.bisect.origins import find_origins
from fpdiff.fingerprint.bisect.preflight import OP_RUNGS
from fpdiff.fingerprint.bisect.reach import MAX_EVENTS, Consequences
from fpdiff.fingerprint.bisect.shift import describe_shift
from fpdiff.fingerprint.bisect.switches import CHOOSES, holds
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference, Origin, OriginGroup
from fpdiff.store.schema import digest_text

MAX_INPUTS = 16
_TENSORS = ("parameter", "buffer", "master weights")
"""Components of the state that something may write between two steps."""

_MAX_PATHS = 5
"""Of so many origins a rank's verdict says what they led to."""


class Describer:
    """Describes the origins of one rank, the earliest first."""

    def __init__(
        self,
        found: RankFindings,
        *,
        rung: str,
        environment: list[EnvironmentDifference],
        group: frozenset[int],
        is_alone: bool,
        rehashed: bool,
        other_rank: Callable[[RankFindings], str | None],
    ) -> None:
        """Remember what they are described from.

        Args:
            found: the rank's findings.
            rung: what was compared.
            environment: entries that differ on the rank and can change a result.
            group: the ranks that gradients are reduced with, this one included.
            is_alone: no other of them got another gradient in the step.
            rehashed: both runs digested again what each op read.
            other_rank: says which other rank had a rank's batch, if one had.
        """
        self._found = found
        self._rung = rung
        self._environment = environment
        self._group = group
        self._is_alone = is_alone
        self._rehashed = rehashed
        self._other_rank = other_rank
        self._evidence_given: set[str] = set()
        self._told: list[int] = []

    def describe(
        self, candidates: list[Candidate], most: int
    ) -> tuple[list[Origin], list[OriginGroup]]:
        """Describe the rank's origins, and those together that one cause may have made.

        Args:
            candidates: the origins.
            most: describe so many; the first of each group goes before the others.

        Raises:
            StoreError: a file is damaged.
        """
        groups = grouped(self._sort(candidate) for candidate in candidates)
        firsts = [group[0] for group in groups]
        others = sorted(place for group in groups for place in group[1:])
        origins = {place: self._origin(candidates[place]) for place in [*firsts, *others][:most]}
        told = {place: number for number, place in enumerate(sorted(origins))}
        return [origins[place] for place in told], [
            self._together(
                [candidates[place] for place in group],
                [told[place] for place in group if place in told],
            )
            for group in groups[:most]
        ]

    def _sort(self, candidate: Candidate) -> Hashable:
        if candidate.microbatches is not None:
            return candidate.microbatches
        site = self._aligned.site(candidate.row)
        # What a step starts from has read nothing, and there may be very much of it.
        is_state = component_of(site) is not None
        inputs = () if is_state else self._inputs(*self._aligned.arm_of(candidate.row))
        kind = self._kind(candidate, site, len(inputs))
        return self._sorts.of(candidate, kind)

    def _together(self, members: list[Candidate], origins: list[int]) -> OriginGroup:
        sites = [self._aligned.site(candidate.row) for candidate in members]
        names = names_of(sites)
        count, of = len(members), self._sorts.size(members[0].row)
        return OriginGroup(
            rank=self._found.rank,
            count=count,
            of=of,
            origins=origins,
            members=names[:MAX_NAMES],
            patterns=patterns(names),
            hint=advice.group_hint(component_of(sites[0]), count, of, is_start=self._is_start),
        )

    @property
    def _is_start(self) -> bool:
        """Whether both runs begin with this step, as far as their records say."""
        tier, step = self._found.tier, self._found.step
        begins = all(int(steps[0]) == step for steps in tier.all_steps)
        return begins and tier.on_both(advice.is_of_all_steps)

    @cached_property
    def _sorts(self) -> Sorts:
        return Sorts(self._aligned)

    def _origin(self, candidate: Candidate) -> Origin:
        aligned = self._aligned
        site = aligned.site(candidate.row)
        arm, index = aligned.arm_of(candidate.row)
        inputs = self._inputs(arm, index)
        kind = self._kind(candidate, site, len(inputs))
        a = _side(aligned.a, int(aligned.index_a[candidate.row]))
        b = _side(aligned.b, int(aligned.index_b[candidate.row]))
        return Origin(
            rank=self._found.rank,
            step=self._found.step,
            microbatch=int(arm.own_microbatch[index]),
            phase=site["phase"],
            module=site["module"],
            module_class=site["module_class"],
            call=site["call"],
            op=site["op"],
            source=site["source"],
            occurrence=site["occurrence"],
            kind=site["kind"],
            slot=site["slot"],
            seq=int(arm.seq[index]),
            class_=kind.class_,
            component=kind.component,
            summary=kind.what,
            a=a,
            b=b,
            inputs=[_name(arm.site_of(i)) for i in inputs[:MAX_INPUTS].tolist()],
            num_inputs=len(inputs),
            matched_before=self._matched_before(candidate.row),
            strength=f"{self._records()}; {self._strength(candidate, kind, len(inputs))}",
            hint=self._hint(candidate, site, kind),
            evidence=[
                *self._cause(candidate),
                *evidence.trained(self._aligned, site),
                *_kernels(a, b),
                *self._evidence(kind, site, candidate.row),
            ],
            count=candidate.count,
            reaches=self._reaches(candidate.row),
        )

    def _strength(self, candidate: Candidate, kind: Kind, num_inputs: int) -> str:
        """Return what the attribution rests on."""
        arm, index = self._aligned.arm_of(candidate.row)
        # It stands for what it read, which one run alone has.
        stands_for_others = not num_inputs and kind.class_ == "metadata" and len(arm.direct(index))
        class_ = "structure" if stands_for_others else kind.class_
        return advice.strength(self._rung, class_, num_inputs)

    def _hint(self, candidate: Candidate, site: Site, kind: Kind) -> str | None:
        """Return what to look at."""
        if candidate.microbatches is not None:
            return advice.OF_MICROBATCHES
        if candidate.root_in_b is not None:
            return advice.OF_ROOTS
        if candidate.moved:
            return advice.of_moved(site["kind"], site["phase"])
        if self._is_elsewhere(candidate.row, site):
            return advice.ELSEWHERE
        candidates = self._found.candidates
        has_more = any(c.microbatches is not None for c in candidates)
        if has_more and (site["kind"] == "loss" or _is_scaling(site)):
            return advice.BY_MICROBATCHES
        is_size = site["kind"] == "arguments" or (kind.class_ == "metadata" and not is_batch(site))
        if is_size and any(self._is_batch_of_other_shape(c.row) for c in candidates):
            return advice.BY_SHAPE
        if kind.component in _TENSORS and self._found.tier.num_steps_before(self._found.step):
            return advice.BETWEEN_STEPS
        is_common = site["phase"] == "eval" and not self._found.evaluation
        return advice.hint(
            kind.class_,
            kind.component,
            site["op"],
            kind=site["kind"],
            phase="" if is_common else site["phase"],  # Both runs evaluated the model.
            rung=self._rung,
            has_line=site["source"] is not None,
            rehashed=self._rehashed,
            on_cpu=self._found.tier.on_both(advice.is_on_cpu),
        )

    def _is_elsewhere(self, row: int, site: Site) -> bool:
        """Return whether a parameter's gradient is one run's here, and the other's elsewhere."""
        if site["kind"] != "local_gradient" or self._aligned.paired[row]:
            return False
        own, _ = self._aligned.arm_of(row)
        other = self._aligned.b if own is self._aligned.a else self._aligned.a
        place = ("kind", "module", "slot")
        sites = (other.sites.rows[n] for n in np.unique(other.site).tolist())
        return any(all(peer[name] == site[name] for name in place) for peer in sites)

    def _is_batch_of_other_shape(self, row: int) -> bool:
        differs = self._aligned.paired[row] and not self._aligned.described_alike[row]
        return bool(differs) and is_batch(self._aligned.site(row))

    def _records(self) -> str:
        """Return what the step's records are worth, which were checked when they were read."""
        arms = {"A": self._aligned.a, "B": self._aligned.b}
        if cut := [f"{name}'s" for name, arm in arms.items() if arm.is_cut]:
            return f"{' and '.join(cut)} record ends within the step"
        return "both records of the step are whole"

    @cached_property
    def _consequences(self) -> Consequences | None:
        mismatched = np.zeros(len(self._aligned), bool)
        mismatched[find_origins(self._aligned).mismatched] = True
        if mismatched.sum() > MAX_EVENTS:
            return None
        return Consequences(self._aligned, mismatched)

    def _reaches(self, row: int) -> list[str]:
        """Return what an origin led to, named from there back to it; where ops are recorded."""
        if (
            self._rung not in OP_RUNGS
            or self._consequences is None
            or len(self._told) >= _MAX_PATHS
        ):
            return []
        self._told.append(row)
        way = [self._aligned.site(r) for r in self._consequences.path(row)]
        return [described(site) for site in reversed(way)]

    @property
    def _aligned(self) -> Aligned:
        return self._found.tier.aligned(self._found.step)

    def _matched_before(self, row: int) -> int:
        earlier = self._found.tier.num_events_before(self._found.step)
        return earlier + int(self._aligned.equal[:row].sum())

    def _inputs(self, arm: Arm, index: int) -> Ints:
        """Return what an event read that is equal in both runs."""
        producers = arm.producers(index)
        rows = self._aligned.rows[0 if arm is self._aligned.a else 1][producers]
        # A span may hold what differs and does not count, such as a generator nobody draws from.
        return producers[self._aligned.equal[rows]]

    def _kind(self, candidate: Candidate, site: Site, num_inputs: int) -> Kind:
        if candidate.microbatches is not None:
            return of_microbatches(site, candidate.microbatches)
        if candidate.root_in_b is not None:
            return of_other_root(candidate.root_in_b)
        if candidate.moved:
            return moved(site, candidate.count)
        return classify(site, self._facts(candidate.row, site, num_inputs))

    def _facts(self, row: int, site: Site, num_inputs: int) -> Facts:
        aligned = self._aligned
        in_a, in_b = bool(aligned.index_a[row] >= 0), bool(aligned.index_b[row] >= 0)
        alike = bool(aligned.described_alike[row])
        if component_of(site) is not None:
            return Facts(in_a=in_a, in_b=in_b, same_description=alike)
        return Facts(
            in_a=in_a,
            in_b=in_b,
            same_call=site["kind"] == "arguments" and self._is_called_by_both(row),
            same_description=alike,
            num_inputs=num_inputs,
            other_inputs=self._other_inputs(row) if in_a and in_b else {},
            read_hole=any(s["kind"] == "uninitialised" for s in self._read_by_name(row)),
            exact=bool(named := self._read_by_name(row)) and all(s["op"] for s in named),
            generators=self._drawn_from() if self._rung == "step" else [],
            environment=self._environment_of(site),
            reduction=self._reduction(row, site),
        )

    def _is_called_by_both(self, row: int) -> bool:
        """Return whether the call that a row's event belongs to made a thing in both runs."""
        arm, index = self._aligned.arm_of(row)
        rows = self._aligned.rows[0 if arm is self._aligned.a else 1]
        call, end = arm.call_of(index), len(arm)
        own = takewhile(lambda i: arm.call_of(i) == call, range(index + 1, end))
        return any(self._aligned.paired[rows[i]] for i in own)

    def _read_by_name(self, row: int) -> list[Site]:
        """Return the sites of the events that a row's event names as its inputs."""
        arm, index = self._aligned.arm_of(row)
        return [arm.site_of(i) for i in arm.direct(index).tolist()]

    def _other_inputs(self, row: int) -> dict[str, str]:
        """Name what the row's event read in one run only; of an op, at its place among the others.

        Equal digests of what each read say nothing where the two read different things.
        """
        aligned = self._aligned
        sides = (aligned.a, int(aligned.index_a[row])), (aligned.b, int(aligned.index_b[row]))
        if aligned.site(row)["op"] is not None:
            found = _other_operands(*sides)
        else:
            rows = [
                r[arm.direct(index)] for r, (arm, index) in zip(aligned.rows, sides, strict=True)
            ]
            own = np.setdiff1d(rows[0], rows[1]), np.setdiff1d(rows[1], rows[0])
            # What only one of two modules read may be nothing that it used.
            found = [
                [aligned.site(r) for r in o.tolist()] if all(map(len, own)) else [] for o in own
            ]
            if all(found) and all(site["kind"] == "option" for site in chain(*found)):
                return dict(zip(("A", "B"), self._groups_read(own), strict=True))
        names = _named_apart(found)
        return {
            run: evidence.listed(own) for run, own in zip(("A", "B"), names, strict=True) if own
        }

    def _groups_read(self, rows: tuple[Ints, Ints]) -> list[str]:
        """Name the options that an update read in each run, and values in which they differ."""
        sides: list[dict[str, tuple[bytes, float | None]]] = []
        groups = []
        both = (self._aligned.a, self._aligned.index_a), (self._aligned.b, self._aligned.index_b)
        for (arm, index), own in zip(both, rows, strict=True):
            at = index[own].tolist()
            slots = [arm.site_of(i)["slot"] for i in at]
            groups.append(evidence.listed(sorted({slot.rpartition(".")[0] for slot in slots})))
            values = arm.table["value"].take(at).to_pylist()
            sides.append(
                {
                    slot.rpartition(".")[2]: (arm.digest[i].tobytes(), value)
                    for slot, i, value in zip(slots, at, values, strict=True)
                }
            )
        differ = [n for n in sides[0] if n in sides[1] and sides[0][n][0] != sides[1][n][0]]
        return [
            f"the options of {group}"
            + (f" ({evidence.listed([_valued(n, side[n][1]) for n in differ])})" if differ else "")
            for group, side in zip(groups, sides, strict=True)
        ]

    def _reduction(self, row: int, site: Site) -> Reduction | None:
        if len(self._group) < 2 or site["kind"] != "reduced_gradient":
            return None
        is_known = (site["module"], site["slot"]) in self._found.has_local
        return Reduction(
            num_ranks=len(self._group),
            local_is_known=is_known,
            is_alone=self._is_alone,
            left_alike=self._was_reduced_alike(row, site, is_known=is_known),
        )

    def _was_reduced_alike(self, row: int, site: Site, *, is_known: bool) -> bool:
        """Return whether the reductions that a gradient came out of are recorded and left it equal.

        The rung layer sees those that Python calls.
        """
        aligned = self._aligned
        got = np.flatnonzero(aligned.having(_is_left_by_reduction)[:row])
        if not is_known:  # Sharded gradients are reduced in the backward.
            got = got[[aligned.site(r)["phase"] == "backward" for r in got.tolist()]]
            return bool(len(got)) and bool(aligned.equal[got].all())
        own = aligned.having(is_kind("local_gradient"))[:row]
        names = ("module", "slot")
        locals_ = {
            aligned.a.content_of(int(aligned.index_a[r]))
            for r in np.flatnonzero(own & aligned.equal[:row]).tolist()
            if all(aligned.site(r)[name] == site[name] for name in names)
        }
        sent = aligned.having(is_kind("sent"))[:row] & aligned.equal[:row]
        calls = {
            aligned.a.call_of(int(aligned.index_a[r]))
            for r in np.flatnonzero(sent).tolist()
            if aligned.a.content_of(int(aligned.index_a[r])) in locals_
        }
        left = [r for r in got.tolist() if aligned.index_a[r] >= 0]
        left = [r for r in left if aligned.a.call_of(int(aligned.index_a[r])) in calls]
        return bool(left) and bool(aligned.equal[left].all())

    @cached_property
    def _generators(self) -> list[str]:
        """Generators that differ at the start of the step, where that may matter.

        Python's and numpy's, when nobody seeded them, differ in any two runs; they are named only
        where something drew from them.
        """
        tier, step = self._found.tier, self._found.step
        if not tier.differences[step].generator:
            return []
        names = tier.generators_that_differ(step)
        return [n for n in names if n.startswith("torch") or n in self._used]

    @cached_property
    def _used(self) -> set[str]:
        return self._found.tier.generators_drawn_from()

    def _drawn_from(self) -> list[str]:
        return [name for name in self._generators if name in self._used]

    def _cause(self, candidate: Candidate) -> list[str]:
        """Say what differs first among the ops that prepared a batch, or before a reduction."""
        row, whose = candidate.cause, "ops that prepared it"
        if candidate.reduced:
            differs = ~self._aligned.equal & self._aligned.having(is_collective)
            row = next(iter(np.flatnonzero(differs[: candidate.row]).tolist()), None)
            whose = "collectives before it"
        if row is None:
            return []
        site = self._aligned.site(row)
        only = "" if self._aligned.paired[row] else ", in one run only"
        return [f"of the {whose} the first to differ{only}: {described(site)}"]

    def _environment_of(self, site: Site) -> list[EnvironmentDifference]:
        """Return what differed where a site's events were made."""
        return [d for d in self._environment if holds(d, self._found.step, site["phase"])]

    def _evidence(self, kind: Kind, site: Site, row: int) -> list[str]:
        """Return what bears on all of a rank's origins of a class; said of the first of them."""
        if kind.class_ in self._evidence_given:
            return []
        self._evidence_given.add(kind.class_)
        found = self._found
        said = []
        if kind.class_ == "data":
            shift = describe_shift(found.tier, found.step)
            places = shift, evidence.other_microbatch(self._aligned, row), self._other_rank(found)
            said += [place for place in places if place] or evidence.equal_beside(
                self._aligned, row
            )
        if kind.class_ in ("data", "rng", "state", "computation", "structure"):
            said += [
                f"generator {name} differs already at the start of step {found.step}"
                for name in self._generators
            ]
        environment = self._environment_of(site)
        if kind.class_ == "environment":
            said += [f"{d.key}: A {d.a}, B {d.b}" for d in environment]
        if kind.class_ == "structure" and site["op"] is not None:
            said += [
                f"{d.key}, which may decide what operators are called: A {d.a}, B {d.b}"
                for d in environment
                if d.key in CHOOSES
            ]
        if kind.component == "parameter" and (tied := evidence.tied(self._aligned, site, row)):
            said.append(tied)
        if kind.class_ == "state" and (since := evidence.since(found.tier, found.step, site)):
            said += since
            if self._rung not in OP_RUNGS:  # There edges lead to them.
                said += evidence.collectives_beside(self._aligned)
        if found.evaluation and kind.class_ in ("rng", "state"):
            said.append(f"only {found.evaluation} evaluated the model in this step")
        return said


def _is_left_by_reduction(site: Site) -> bool:
    return bool(site["kind"] == "received" and "reduce" in site["op"])


def _valued(name: str, value: float | None) -> str:
    return name if value is None else f"{name} {value:.9g}"


def _is_scaling(site: Site) -> bool:
    """Return whether a site is of what an op divides or multiplies by."""
    name = op_of(site).rstrip("_")
    return site["kind"] == "arguments" and name in ("aten.div", "aten.mul")


def _side(arm: Arm, index: int) -> dict[str, Any] | None:
    if index < 0:
        return None
    event = arm.table.slice(index, 1).to_pylist()[0]
    site = arm.site_of(index)
    side = {
        "digest": digest_text(event["digest"].bytes),
        "dtype": site["dtype"],
        "shape": site["shape"],
    }
    extra = {name: event[name] for name in ("value", "l2", "absmax", "nonfinite", "kernels")}
    return side | {name: value for name, value in extra.items() if value is not None}


def _kernels(*sides: dict[str, Any] | None) -> list[str]:
    """Say which kernels ran on the device, where that is known of both runs."""
    a, b = (", ".join(side.get("kernels", ())) if side else "" for side in sides)
    if not a or not b:
        return []
    return [f"the same kernels ran: {a}" if a == b else f"other kernels ran: A {a}; B {b}"]


def _other_operands(*sides: tuple[Arm, int]) -> list[list[Site]]:
    """Return what an op read in one run and not, at the same place, in the other; for each run.

    What is equal to the last bit is the same operand, whoever made it.
    """
    read = [arm.named(index).tolist() for arm, index in sides]
    contents = [[arm.content_of(i) for i in own] for (arm, _), own in zip(sides, read, strict=True)]
    if sorted(contents[0]) == sorted(contents[1]) and not all(arm.keeps_order for arm, _ in sides):
        return [[], []]
    differs = [n for n, pair in enumerate(zip_longest(*contents)) if len(set(pair)) > 1]
    return [
        [arm.site_of(own[n]) for n in differs if n < len(own)]
        for (arm, _), own in zip(sides, read, strict=True)
    ]


def _named_apart(sides: list[list[Site]]) -> list[list[str]]:
    """Name events of both runs, with the program's lines where the names alone say too little."""
    sites = [*chain(*sides)]
    points = {
        (s["phase"], s["module"], s["call"], s["op"], s["occurrence"], s["slot"]) for s in sites
    }
    needs_lines = len({*map(_called, sites)}) < len(points)

    def name(site: Site) -> str:
        line = f" ({site['source']})" if needs_lines and site["source"] else ""
        return f"{_called(site)}{line}"

    return [[name(site) for site in own] for own in sides]


def _called(site: Site) -> str:
    return described(site) if site["op"] else _name(site)


def _name(site: Site) -> str:
    return f"{site['phase']} {site['kind']} {site['module']}.{site['slot']}".replace(" .", " ")
