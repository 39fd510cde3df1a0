"""Events of the values that an optimizer or a gradient scaler holds."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.modules.containers import tensors_in
from fpdiff.fingerprint.record.state.standing import Standing

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.events.stepevents import StepEvents


def emit_kept(
    events: "StepEvents",
    point: Point,
    standing: Standing,
    value: Any,
    reads: Sequence[int] = (),
    first: int | None = None,
) -> list[int]:
    """Emit what an optimizer keeps for a parameter, as `emit_value` does."""
    if not isinstance(value, torch.Tensor):
        return emit_value(events, point, value, reads, first)
    seq = events.emit_standing(
        point,
        standing,
        value,
        trust=point.phase == "init",  # As in `_emit_tensor`.
        reads=reads,
        span=0 if first is None else events.next_seq() - first,
    )
    return [] if seq is None else [seq]


def emit_value(
    events: "StepEvents",
    point: Point,
    value: Any,
    reads: Sequence[int] = (),
    first: int | None = None,
) -> list[int]:
    """Emit a tensor, a plain value, or the tensors in a container; return their seqs.

    They have read `reads`, and everything since the event `first`.
    """
    if isinstance(value, torch.Tensor):
        return _emit_tensor(events, point, value, reads, first)
    plain = plain_bytes(value)
    if plain is not None:
        number = float(value) if isinstance(value, (int, float)) else None
        return [events.emit(point, digest_bytes(plain), value=number, reads=reads)]
    seqs = []
    for slot, tensor in tensors_in(value, point.slot)[0]:
        seqs += _emit_tensor(events, point._replace(slot=slot), tensor, reads, first)
    return seqs


def plain_bytes(value: Any) -> bytes | None:
    """Return bytes that are equal for equal plain values; None for what is not plain data."""
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError):
        return None


def _emit_tensor(
    events: "StepEvents",
    point: Point,
    tensor: torch.Tensor,
    reads: Sequence[int],
    first: int | None,
) -> list[int]:
    """Emit a tensor of an optimizer or a scaler; return its seq, if its bytes can be read."""
    seq = events.emit_tensor(
        point,
        tensor,
        # What an optimizer has just written may have gone past the version counters.
        trust=point.phase == "init",
        value=point.kind != "optimizer_state",
        follow=False,
        reads=reads,
        span=0 if first is None else events.next_seq() - first,
    )
    return [] if seq is None else [seq]
