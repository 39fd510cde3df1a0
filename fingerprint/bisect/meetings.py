"""Collectives and messages, known alike on all ranks that take part."""

from dataclasses import dataclass, field, replace

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import Arm


@dataclass(frozen=True)
class Meeting:
    """A collective, called alike on all of its ranks, or a message from one to another.

    Attributes:
        op: the operator; `send` of a message, whose two ends are two operators.
        group: the ranks, as `members` of SITES has them.
        number: nth call of the op in this group in the step, None if that is unknown. The ranks may
            call it in different phases and count other microbatches, but in the same order.
        phase: in which one of them calls it.
        is_only_b: run A has no such call, and may have another one of that number.
    """

    op: str
    group: str
    number: int | None
    phase: str = field(compare=False)
    is_only_b: bool = False

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that take part."""
        group = self.group.partition(" ")[0]
        return frozenset(int(r) for r in group.replace(">", ",").split(","))

    def among(self, given: "frozenset[Meeting]") -> "frozenset[Meeting]":
        """Return which of the collectives that a rank gave something to may be this one.

        What was received from anybody may be any message to its receiver; what else it received
        may then be any from its sender.
        """
        senders, _, target = self.group.partition(">")
        if target and "," in senders:
            return frozenset(m for m in given if m.group.partition(">")[2] == target)
        if self.number is None:
            return frozenset(m for m in given if m.group == self.group)
        return given & {self}


def meeting_of(aligned: Aligned, row: int) -> Meeting:
    """Return the collective that a row's event belongs to, by its number in A if A has it."""
    arm, index = aligned.arm_of(row)
    if arm is aligned.a:
        return _meeting(arm, index)
    if (in_a := aligned.calls_in_a.get(arm.call_of(index))) is not None:
        return _meeting(aligned.a, in_a)
    return replace(_meeting(arm, index), is_only_b=True)


def _meeting(arm: Arm, index: int) -> Meeting:
    site = arm.site_of(index)
    _, _, target = site["members"].partition(">")
    op = "send" if target else site["op"]
    known = target not in arm.asked_anybody
    number = arm.launches[arm.call_of(index)] if known else None
    return Meeting(op, site["members"], number, site["phase"])
