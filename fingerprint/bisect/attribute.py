"""From rows to origins and receivers, on one rank and across ranks."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect import advice
from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.classify import Kind, classify
from fpdiff.fingerprint.bisect.origins import Findings
from fpdiff.fingerprint.bisect.shift import describe_shift
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.fingerprint.bisect.verdict import EnvironmentDifference, Origin, Receiver
from fpdiff.store.schema import PHASES, digest_text

MAX_INPUTS = 16


@dataclass(frozen=True)
class RankFindings:
    """The first differing step of one rank."""

    rank: int
    step: int
    tier: RankTier
    aligned: Aligned
    findings: Findings

    def mismatched(self, kind: str) -> dict[tuple[str, str], int]:
        """Return the mismatched rows of a kind by (module, slot)."""
        sites = ((self.aligned.site(row), row) for row in self.findings.mismatched.tolist())
        return {(s["module"], s["slot"]): row for s, row in sites if s["kind"] == kind}


class Attribution:
    """Attributes the differences of all ranks."""

    def __init__(
        self, found: list[RankFindings], *, rung: str, environment: list[EnvironmentDifference]
    ) -> None:
        """Remember the findings.

        Args:
            found: of every rank that differs.
            rung: what was compared.
            environment: entries that differ.
        """
        self._found = found
        self._rung = rung
        self._environment = [d for d in environment if d.decides]
        self._local = {f.rank: set(f.mismatched("local_gradient")) for f in found}

    def attribute(self) -> tuple[list[Origin], list[Receiver]]:
        """Return all origins, the earliest first, and the ranks that only received."""
        by_rank: list[list[Origin]] = []
        receivers: list[Receiver] = []
        for found in self._found:
            rows = found.findings.origins.tolist()
            senders = self._senders(found)
            if senders:
                received = [row for row in rows if _is_reduced(found, row)]
                rows = [row for row in rows if not _is_reduced(found, row)]
                if received:
                    receivers.append(self._receiver(found, senders))
            origins = _merge([self._origin(found, row) for row in rows])
            if not found.findings.mismatched.size:
                origins = [self._reordered(found)]
            by_rank.append(origins)
        return _in_order(by_rank), receivers

    def _senders(self, found: RankFindings) -> list[int]:
        """Return the ranks of a rank's group whose own gradients differ in the same step.

        Any of their gradients will do: clipping by the norm couples all of them.
        """
        peers = [o for o in self._found if o.rank != found.rank and o.step == found.step]
        group = _group_of(found)
        return [peer.rank for peer in peers if peer.rank in group and self._local[peer.rank]]

    def _receiver(self, found: RankFindings, senders: list[int]) -> Receiver:
        sent = set().union(*(self._local[rank] for rank in senders))
        places = [p for p in found.mismatched("reduced_gradient") if p in sent]
        names = [f"{m}.{s.removeprefix('grad.')}".lstrip(".") for m, s in places]
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return Receiver(
            rank=found.rank,
            step=found.step,
            from_=senders,
            via=f"the reduction of the gradients of {', '.join(names[:2])}{rest}",
        )

    def _origin(self, found: RankFindings, row: int) -> Origin:
        kind = self._classify(found, row)
        return self._describe(found, row, kind, self._evidence(found, kind))

    def _reordered(self, found: RankFindings) -> Origin:
        """Return the finding that a step holds the same events in another order."""
        aligned = found.aligned
        paired = np.flatnonzero(aligned.paired)
        moved = int(np.flatnonzero(np.diff(aligned.index_b[paired]) < 0)[0]) + 1
        row = int(paired[moved])
        what = f"the same events come in another order, first at {_name(aligned.site(row))}"
        return self._describe(found, row, Kind("structure", None, what), [])

    def _describe(self, found: RankFindings, row: int, kind: Kind, evidence: list[str]) -> Origin:
        aligned, site = found.aligned, found.aligned.site(row)
        arm, index = aligned.arm_of(row)
        producers = arm.producers(index)
        earlier = sum(found.tier.rows[0][s]["events"] for s in found.tier.steps if s < found.step)
        return Origin(
            rank=found.rank,
            step=found.step,
            microbatch=int(arm.microbatch[index]),
            phase=site["phase"],
            module=site["module"],
            module_class=site["module_class"],
            call=site["call"],
            op=site["op"],
            occurrence=site["occurrence"],
            kind=site["kind"],
            slot=site["slot"],
            seq=int(arm.seq[index]),
            class_=kind.class_,
            component=kind.component,
            summary=kind.what,
            a=_side(aligned, row, "a"),
            b=_side(aligned, row, "b"),
            inputs=[_name(arm.sites[int(arm.site[i])]) for i in producers[:MAX_INPUTS]],
            num_inputs=len(producers),
            matched_before=earlier + int(aligned.equal[:row].sum()),
            strength=advice.strength(self._rung, kind.class_, len(producers)),
            hint=advice.hint(kind.class_, kind.component),
            evidence=evidence,
        )

    def _classify(self, found: RankFindings, row: int) -> Kind:
        aligned, site = found.aligned, found.aligned.site(row)
        in_a, in_b = aligned.index_a[row] >= 0, aligned.index_b[row] >= 0
        kind = classify(
            site,
            in_a=bool(in_a),
            in_b=bool(in_b),
            same_description=bool(aligned.described_alike[row]),
            environment=[d for d in self._environment if found.rank in d.ranks],
        )
        # At rungs that do not see the reduction itself, an unexplained reduced gradient of a
        # rank among several came out of it.
        reduced = site["kind"] == "reduced_gradient" and len(_group_of(found)) > 1
        if reduced and kind.class_ in ("computation", "environment"):
            what = f"{kind.what}; no rank's own gradient of it differs"
            return Kind("collective", None, what)
        return kind

    def _evidence(self, found: RankFindings, kind: Kind) -> list[str]:
        evidence = []
        if kind.class_ == "data" and (shift := describe_shift(found.tier, found.step)):
            evidence.append(shift)
        if kind.class_ in ("data", "rng", "state"):
            evidence += _generator_evidence(found)
        if kind.class_ == "environment":
            for d in self._environment:
                if found.rank in d.ranks:
                    evidence.append(f"{d.key}: A {d.a}, B {d.b}")
        if found.findings.num_evaluations and kind.class_ == "rng":
            evidence.append(
                f"only one run made an evaluation in this step"
                f" ({found.findings.num_evaluations} events)"
            )
        return evidence


def _generator_evidence(found: RankFindings) -> list[str]:
    # Python's and numpy's generators, when nobody seeded them, differ in any two runs; they are
    # evidence only where something drew from them.
    used = found.tier.generators_drawn_from()
    return [
        f"generator {name} differs already at the start of step {found.step}"
        for name in found.tier.generators_that_differ(found.step)
        if name.startswith("torch") or name in used
    ]


def _group_of(found: RankFindings) -> list[int]:
    """Return the ranks that a rank's gradients may have been reduced with."""
    environment = found.tier.a.info.get("environment", {})
    groups = [group["ranks"] for group in environment.get("process_groups", [])]
    return max(groups, key=len, default=[found.rank])


def _side(aligned: Aligned, row: int, which: str) -> dict[str, Any] | None:
    arm, index = (
        (aligned.a, aligned.index_a[row]) if which == "a" else (aligned.b, aligned.index_b[row])
    )
    if index < 0:
        return None
    event = arm.table.slice(int(index), 1).to_pylist()[0]
    site = arm.sites[event["site"]]
    side = {
        "digest": digest_text(event["digest"].bytes),
        "dtype": site["dtype"],
        "shape": site["shape"],
    }
    extra = {name: event[name] for name in ("value", "l2", "absmax", "nonfinite")}
    return side | {name: value for name, value in extra.items() if value is not None}


def _name(site: dict[str, Any]) -> str:
    return f"{site['phase']} {site['kind']} {site['module']}.{site['slot']}".replace(" .", " ")


def _merge(origins: list[Origin]) -> list[Origin]:
    """Fold neighbours of a structural difference into the first: a module more is one finding."""
    merged: list[Origin] = []
    for origin in origins:
        last = merged[-1] if merged else None
        same = last is not None and last.class_ == origin.class_ == "structure"
        if last is not None and same and (last.a is None) == (origin.a is None):
            merged[-1] = replace(last, count=last.count + 1)
        else:
            merged.append(origin)
    return merged


def _in_order(by_rank: list[list[Origin]]) -> list[Origin]:
    """Return all origins: by step, then by how early in the step a rank has its first."""

    def key(origins: list[Origin]) -> tuple[int, int, int]:
        first = origins[0]
        return first.step, PHASES.index(first.phase), first.rank

    found = sorted(filter(None, by_rank), key=key)
    return [origin for origins in found for origin in origins]


def _is_reduced(found: RankFindings, row: int) -> bool:
    return bool(found.aligned.site(row)["kind"] == "reduced_gradient")
