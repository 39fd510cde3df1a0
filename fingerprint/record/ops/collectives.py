"""Collectives: what a rank gives and gets, and with whom.

An output is not ready when the call returns, and a recorder that waited would change the run. So
it is recorded when the program first reads it or writes over it, which a correct program does after
its own wait.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from fpdiff.fingerprint.digest.host import PlainView, look
from fpdiff.fingerprint.record.events.prelude import place_of
from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.modules.scopes import MAX_READS
from fpdiff.fingerprint.record.ops.call import Call
from fpdiff.fingerprint.record.ops.schema import OpSchema
from fpdiff.fingerprint.record.ops.values import Argument, results
from fpdiff.fingerprint.record.ops.writers import Flight

if TYPE_CHECKING:
    from fpdiff.fingerprint.record.ops.mode import OpRecorder

_GIVES = frozenset({"tensors", "input", "inputs", "input_tensor", "input_tensors", "input_list"})
_GETS = frozenset(
    {"tensors", "output", "outputs", "output_tensor", "output_tensors", "output_lists", "out"}
)
_ADDRESSES = frozenset({"group_name", "root_tensor"})
"""Arguments that say how tensors travel and not which."""

_SIZES = frozenset({"input_split_sizes", "output_split_sizes"})
"""Arguments that a program counts in tensors, which only the rung op sees it take numbers from."""

_NO_TENSORS = ("c10d.barrier", "c10d.monitored_barrier_", "c10d.check_for_nan")
_IN_PLACE = frozenset(
    f"_c10d_functional.{name}" for name in ("all_reduce_", "all_reduce_coalesced_", "broadcast_")
)
_PEERS = {
    "c10d.send": "dst",
    "c10d.recv_": "src",
    "_c10d_functional.isend": "dst",
    "_c10d_functional.irecv": "src",
}
"""Ops that move one message, and what they call the rank at its other end."""


@dataclass(frozen=True)
class Exchange:
    """One rank's part in a collective.

    Attributes:
        group: the ranks, as `0,1,4`; of a message `0>1`, or `0>1 tag 7`, or `0,1,4>1` if its
            receiver takes it from anybody.
        gives: names, or slots, of the arguments whose bytes others get.
        gets: names, or slots, of what is written.
    """

    group: str
    gives: frozenset[str]
    gets: frozenset[str]


@dataclass(slots=True)
class Launch(Call):
    """A call of a collective.

    Attributes:
        gets: as its exchange says.
        also: the calls that stand for further messages which the same operator moves.
    """

    gets: frozenset[str] = frozenset()
    also: list["Launch"] = field(default_factory=list)


def exchanges(schema: OpSchema, named: Mapping[str, Any], rank: int) -> list[Exchange]:
    """Return what a rank gives to a collective and gets, none if no tensor moves.

    It is one exchange, or one for each message.
    """
    name = schema.name.rsplit(".", 1)[0]
    if name in _NO_TENSORS or (ranks := _ranks(named)) is None:
        return []
    if messages := _messages(name, named, ranks, rank):
        return messages
    gives, gets = _GIVES, _GETS
    if name.startswith("_c10d_functional"):
        gets = gives if name in _IN_PLACE else frozenset({"out"})
    place = ranks.index(rank) if rank in ranks else -1
    root = named.get("root_rank", named.get("src") if "broadcast" in name else None)
    if "broadcast" in name or "scatter_" in name and "reduce" not in name:
        gives = gives if place == root else frozenset()
    elif name == "c10d.gather_":
        gets = gets if place == root else frozenset()
    # A reduction to one rank may leave the others with a part of it.
    return [Exchange(",".join(map(str, ranks)), gives, gets)]


def _messages(name: str, named: Mapping[str, Any], ranks: list[int], rank: int) -> list[Exchange]:
    """Return the messages that an operator moves, none if it is no operator for messages."""
    nothing = frozenset[str]()
    if name == "c10d.recv_any_source_":
        anybody = ",".join(map(str, ranks))
        return [Exchange(_route(anybody, rank, named["tag"]), nothing, _GETS)]
    if name == "_c10d_functional.batch_p2p_ops":
        told = [
            (op == "isend", ranks[peer], tag, f"tensors.{index}", f"out.0.{index}")
            for index, (op, peer, tag) in enumerate(
                zip(named["op_list"], named["peer_list"], named["tag_list"], strict=True)
            )
        ]
    elif (peer := _PEERS.get(name)) is not None:
        given, got = ("tensors", "tensors") if name.startswith("c10d.") else ("tensor", "out")
        told = [(peer == "dst", ranks[named[peer]], named["tag"], given, got)]
    else:
        return []
    return [
        Exchange(_route(rank, other, tag), frozenset({given}), nothing)
        if sends
        else Exchange(_route(other, rank, tag), nothing, frozenset({got}))
        for sends, other, tag, given, got in told
    ]


def _route(source: int | str, target: int, tag: int) -> str:
    return f"{source}>{target}" + (f" tag {tag}" if tag else "")


class CollectiveRecorder:
    """The events of collectives, part of those of operators."""

    def __init__(self, ops: "OpRecorder") -> None:
        """Belong to the recorder of operators."""
        self._ops = ops
        self._flying: list[weakref.ref[torch.Tensor]] = []

    def take_flying(self) -> list["weakref.ref[torch.Tensor]"]:
        """Return what collectives are going to write that were launched since last asked."""
        flying, self._flying = self._flying, []
        return flying

    def before(
        self,
        schema: OpSchema,
        tensors: list[Argument],
        others: list[tuple[str, Any]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[bool, Call | None]:
        """Take an op that is part of a collective; return whether it is one, and its call."""
        if schema.waits:
            nowhere = Point("other", "", "", "", 0, "", schema.name)
            return True, Call(schema, nowhere, 0, 0, written=[("", None, tensors[0][3])])
        if schema.is_collective:
            named = dict(zip(schema.arguments, args, strict=False)) | dict(kwargs)
            return True, self._launch(schema, tensors, others, named)
        return self._is_landing(tensors), None

    def after(self, call: Call, result: Any) -> None:
        """Note what a collective is going to write, or record what the program has waited for."""
        if call.schema.waits:
            self._ops.land(call.written[0][2])
        elif isinstance(call, Launch):
            for launch in (call, *call.also):
                self._take_off(launch, result)

    def _launch(
        self,
        schema: OpSchema,
        tensors: list[Argument],
        others: list[tuple[str, Any]],
        args: Mapping[str, Any],
    ) -> Launch | None:
        """Record what this rank gives to a collective; return None if no tensor moves."""
        told = [(n, v) for n, v in others if n not in _ADDRESSES]
        if isinstance(reduction := args.get("reduce_op"), torch.ScriptObject):
            told.append(("reduce_op", reduction.op()))  # type: ignore[attr-defined]
        meetings = exchanges(schema, args, self._ops.recorder.rank)
        launches = [self._depart(schema, tensors, told, meeting) for meeting in meetings]
        if not launches:
            return None
        first, *first.also = launches
        return first

    def _depart(
        self,
        schema: OpSchema,
        tensors: list[Argument],
        told: list[tuple[str, Any]],
        meeting: Exchange,
    ) -> Launch:
        """Record what this rank gives to one exchange."""
        ops = self._ops
        phase, microbatch = ops.phase()
        point = Point(phase, "", "", "", 0, "", schema.name, meeting.group)
        occurrence = ops.op_events.count(place_of(point, microbatch))
        launch = Launch(schema, point, microbatch, occurrence, gets=meeting.gets)
        given = []
        for name, slot, _, tensor in tensors:
            if meeting.gives & {name, slot}:
                given += self._give(launch, slot, tensor)
            if meeting.gets & {name, slot}:
                ops.land(tensor)
                launch.written.append((slot, None, tensor))
        launch.reads = given
        if not ops.recorder.ops and (scope := ops.recorder.scopes.top()) is not None:
            scope.reads += given  # What the call makes next may be made with what comes back.
        if told:
            sized = not ops.recorder.ops and any(name in _SIZES for name, _ in told)
            reads, span = self._edges(None) if sized else ([], 0)
            ops.arguments(launch, told, reads=reads, span=span)
        return launch

    def _take_off(self, call: Launch, result: Any) -> None:
        """Note what a collective is going to write: it is recorded when the program reads it."""
        flying = [(slot, tensor) for slot, _, tensor in call.written]
        if call.schema.name.startswith("_c10d_functional"):
            returned = [(slot, tensor) for _, slot, tensor in results(result, call.schema)]
            flying += [(s, t) for s, t in returned if call.gets & {"out", s}]
        call.written = []  # It outlives the call, and must keep no tensor alive.
        if not self._ops.recorder.ops:
            self._flying += [weakref.ref(tensor) for _, tensor in flying]
        for slot, tensor in flying:
            if (view := look(tensor)) is not None and view.extent_bytes:
                self._ops.writers.launch(view, self._flight(call, slot, tensor, view))

    def _is_landing(self, tensors: list[Argument]) -> bool:
        """Return whether a copy is a collective's own, from a buffer of its to its output.

        Gloo makes it when the program waits for a reduce-scatter. What it copies no op has made.
        """
        if len(tensors) < 2:
            return False
        writers = self._ops.writers
        target, source = look(tensors[0][3]), look(tensors[1][3])
        if target is None or source is None or not writers.is_copied_in(target):
            return False
        return not writers.sources(source).known

    def _give(self, call: Call, slot: str, tensor: torch.Tensor) -> list[int]:
        ops = self._ops
        source = Call(call.schema, call.point, call.microbatch, call.occurrence)
        if ops.recorder.ops:
            ops.read(source, slot, None, tensor)
        digest = ops.digest(tensor, look(tensor))
        if digest is None:
            return source.reads
        point = call.at("sent", slot)
        reads, span = source.reads_of(None), 0
        if not ops.recorder.ops:
            reads, span = self._edges(tensor)
        return [ops.emit(source, point, digest, tensor, reads, span=span)]

    def _edges(self, tensor: torch.Tensor | None) -> tuple[list[int], int]:
        """Return reads and span of what a rank gives, where operators are not recorded.

        Args:
            tensor: what it gives; None for numbers.
        """
        recorder = self._ops.recorder
        if recorder.between_steps:
            return [], 0
        producer, exact = None, False
        if tensor is not None:
            producer, exact = recorder.events.producer_of(tensor, look(tensor))
        reads = [] if producer is None else [producer]
        if exact:
            return reads, 0
        scope = recorder.scopes.top()
        if scope is not None:
            # A wrapper that shards parameters gives those of the modules inside.
            reads += [*scope.all_reads(), *recorder.state.read_inside(scope.path)]
            if len(reads) <= MAX_READS:
                return reads, 0
        return [], recorder.events.num_step_events()

    def _flight(self, call: Call, slot: str, tensor: torch.Tensor, view: PlainView) -> Flight:
        def land(landed: torch.Tensor, reads: list[int]) -> None:
            call.reads = reads
            self._ops.made(call, "received", slot, None, landed)

        return Flight(
            view.start_byte,
            view.end_byte,
            list(call.reads),
            land,
            tensor.dtype,
            int(tensor.storage_offset()),
            tensor.shape,
            tensor.stride(),
            "reduce_scatter" in call.schema.name,
        )


def _ranks(named: Mapping[str, Any]) -> list[int] | None:
    """Return the global ranks of a collective's group, by their place in it.

    Names of groups are of no use: they differ between processes.
    """
    world: Any = distributed_c10d
    group: Any = named.get("process_group", named.get("group_name"))
    if isinstance(group, str):
        group = world._resolve_process_group(group)
    elif isinstance(group, torch.ScriptObject):
        group = distributed.ProcessGroup.unbox(group)
    if group is None:
        return None
    if (known := world._world.pg_group_ranks.get(group)) is None:
        group = world._resolve_process_group(group.group_name)
        known = world._world.pg_group_ranks[group]
    return [r for r, _ in sorted(known.items(), key=lambda item: item[1])]
