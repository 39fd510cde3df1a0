"""Steps, sites and events: every hook's way to the store.

A recorder is *awake* until it decides that this process is not to be recorded, or something
fails. Nothing is created on disk before the first module runs.
"""

import os
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fpdiff.fingerprint.digest.algorithms import ALGORITHMS
from fpdiff.fingerprint.digest.cache import SMALL_BYTES, DigestCache
from fpdiff.fingerprint.digest.host import (
    PlainView,
    Undigestible,
    is_number,
    look,
    scalar,
)
from fpdiff.fingerprint.digest.staging import Staging, digest_of_number
from fpdiff.fingerprint.digest.stats import statistics
from fpdiff.fingerprint.record.events.dataflow import Producers
from fpdiff.fingerprint.record.events.lines import Lines
from fpdiff.fingerprint.record.events.prelude import FIRST, OpEvent, OpPlace, Prelude, place_of
from fpdiff.fingerprint.record.events.sitetable import Point, SiteTable
from fpdiff.fingerprint.record.events.stepwriter import StepWriter
from fpdiff.fingerprint.record.generators import torch_state
from fpdiff.fingerprint.record.job import environment, process, runfolder
from fpdiff.fingerprint.record.modules.names import Names
from fpdiff.fingerprint.record.modules.nodes import Nodes
from fpdiff.fingerprint.record.modules.scopes import Scope, ScopeStack
from fpdiff.fingerprint.record.ops.devicekernels import DeviceKernels
from fpdiff.fingerprint.record.ops.writers import HOLE, Writers
from fpdiff.fingerprint.record.settings import Settings
from fpdiff.fingerprint.record.state.optimizing import RunningOptimizer
from fpdiff.fingerprint.record.state.standing import Standing
from fpdiff.fingerprint.record.state.stepstate import StateRecorder
from fpdiff.fingerprint.record.warning import warn
from fpdiff.store.columns import EventColumns
from fpdiff.store.errors import StoreError
from fpdiff.store.writer import RankWriter

FLUSH_EVENTS = 1 << 16
"""An open step is written to the journal each time it has so many new events."""


class Recorder:
    """Records this process, as one rank of a run."""

    def __init__(self, settings: Settings) -> None:
        """Get ready; see `arming.arm` for the hooks."""
        self.settings = settings
        self.kernels = settings.level == "kernel"
        self.ops = self.kernels or settings.level == "op"
        self.layers = self.ops or settings.level == "layer"
        self.collectives = self.ops or (self.layers and settings.collectives)
        self.awake = True
        self.is_observing = False  # a hook is at work: the ops that run are its own
        self.names = Names()
        self.scopes = ScopeStack()
        self.producers = Producers()
        self.writers = Writers()
        self.nodes = Nodes()
        self.lines = Lines(self.nodes)
        # With --rehash digests are compared as soon as they are taken.
        staging = Staging() if settings.digest == "mix128" and not settings.rehash else None
        self.cache = DigestCache(ALGORITHMS[settings.digest], staging)
        # Elsewhere more is done for each tensor than `emit_standing` does.
        self._knows_standing = not (self.ops or settings.stats)
        self.state = StateRecorder(self)
        self.blind_spots: Counter[str] = Counter()
        self.device_kernels = DeviceKernels(self.blind_spots)
        self.step = settings.first_step
        self.step_first_seq = 0
        self.backward_first_seq = 0
        self.microbatch = 0
        self.has_gone_back = False  # since the last forward: what runs now belongs to none of them
        self.calls: Counter[tuple[str, str, int]] = Counter()  # by (phase, module, microbatch)
        self.boundary_due = False
        self.generator_state = b""
        self.generator_seq = -1  # of the last event that said what a module drew from
        self.rank = 0
        self.optimizer = RunningOptimizer(self.state.step_settings)
        # Seqs of events, provisional ones too, for the edges of later ops:
        self.numbers: list[int] = []  # that the program took out of tensors
        self.draws: dict[object, int] = {}  # by generator, the last
        self.draws_in_call: list[int] = []  # since a module last said what it drew from
        # Seqs of the open step's events, for the edges of later ones:
        self.root_outputs: list[int] = []
        self.consumers: dict[int, list[Scope]] = {}  # of an output, the calls it was given to
        self.passed_on: dict[int, tuple[int, Scope]] = {}  # of an output, who returned it as is
        self.calls_read: dict[tuple[str, int], list[int]] = {}  # by (module, microbatch)
        self.gradient_seqs: dict[int, int] = {}  # by id of the parameter
        self._prelude = Prelude()
        self._met_between_steps: set[tuple[Point, int]] = set()
        self._op_counts: Counter[OpPlace] = Counter()
        self._explicit_steps = False
        self._has_stepped = False
        self._environment: dict[str, Any] = {}
        self._open = False
        self._in_window = False
        self._thread = 0
        self._staging = staging
        self._columns = EventColumns(self.step, 0)
        self._writer: RankWriter | None = None
        self._stopped = ""

    # Lifecycle

    def touch(self) -> bool:
        """Open the step that an event belongs to; return whether it is to be recorded.

        Every hook begins with this.
        """
        if not self.follows_thread():
            return False
        if self.boundary_due:
            self._open_step(self.step + 1)
        elif not self._open:
            self._open_step(self.step)
        return self._in_window and self.awake

    def continues(self) -> bool:
        """Return whether an event that ends a step (optimizer, metric) is to be recorded."""
        return self._open and self._in_window and self.awake

    def wants_ops(self) -> bool:
        """Return whether the ops that run now are to be recorded."""
        if self._writer is None or self.is_observing or not self.awake:
            return False
        if self.between_steps:
            return self.settings.wants_step(self.step + self.boundary_due)
        return self._in_window

    @property
    def between_steps(self) -> bool:
        """Whether it is not known yet to which step what runs now belongs."""
        return (self.boundary_due or not self._open) and self.optimizer.options is None

    def has_begun(self) -> bool:
        """Return whether a module has run, and this process is a rank of the run."""
        return self._writer is not None

    def is_distributed(self) -> bool:
        """Return whether a process group exists, so that gradients may be reduced."""
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    def begin(self) -> bool:
        """Begin to record this process if it has not begun; called when a module runs.

        Returns:
            Whether it records; False for DataLoader workers and ranks outside the window.
        """
        if self._writer is not None:
            return True
        if process.is_data_worker():
            self.awake = False
            return False
        self.rank = process.rank()
        if not self.settings.wants_rank(self.rank):
            self.awake = False
            return False
        try:
            root = runfolder.join_attempt(Path(self.settings.out))
            self._writer = RankWriter(root, self.rank)
        except StoreError as taken:
            self.awake = False
            warn(f"this process (pid {os.getpid()}) is left out: {taken}", stacklevel=1)
            return False
        self._sites = SiteTable(self._writer.add_site, self.lines.of)
        self._steps = StepWriter(self._writer, self._sites, self._staging)
        self._thread = threading.get_ident()
        self._environment = environment.describe()
        self._write_info()
        process.at_end(self.close)
        return True

    def follows_thread(self) -> bool:
        """Return whether what runs in this thread is recorded; if not, it is a blind spot."""
        if threading.get_ident() == self._thread:
            return True
        # The autograd engine runs hooks in threads of its own while the program waits for it.
        if self._writer is None:
            return False
        if torch._C._current_graph_task_id() != -1:
            return True
        self.blind_spots["thread not followed"] += 1
        return False

    def _open_step(self, number: int) -> None:
        self._close_step(ended=True)
        self.step = number
        self.boundary_due = False
        self._open = True
        self._in_window = self.settings.wants_step(number)
        self.step_first_seq = self.next_seq()
        self._columns = EventColumns(number, self.step_first_seq)
        self._steps.open_step(number, self.step_first_seq)
        self._is_flushed = False
        self._occurrences: dict[tuple[Point, int], int] = {}
        self.calls.clear()
        self.backward_first_seq = self.step_first_seq
        self.microbatch = 0
        self.has_gone_back = False
        self.root_outputs.clear()
        self.consumers.clear()
        self.calls_read.clear()
        self.gradient_seqs.clear()
        self.passed_on.clear()
        self.generator_seq = -1
        self.producers.clear()
        self.cache.sweep()
        if self.collectives:
            self._open_with_prelude()
        if self._in_window:
            self.state.record_tensors()
            self.generator_state = torch_state()
            if self.kernels:
                self.device_kernels.begin()

    def _open_with_prelude(self) -> None:
        prelude, self._prelude = self._prelude, Prelude()
        shift = self.step_first_seq - FIRST
        if not self._in_window:
            prelude = Prelude()
        self._op_counts = prelude.counts
        for event in prelude.events:
            self._emit_kept(event, event.occurrence, [seq + shift for seq in event.reads])
        self.writers.forget(FIRST if self._in_window else FIRST << 1)
        self._settle(shift)
        self.draws_in_call.clear()
        self.nodes.next_step()

    def join_prelude(self) -> None:
        """Add the ops since an optimizer's step to its step: another optimizer's has come."""
        prelude, self._prelude = self._prelude, Prelude()
        if not prelude.events:
            return
        shift = self.next_seq() - FIRST
        for event in prelude.events:
            reads = [seq + shift for seq in event.reads]
            occurrence = event.occurrence + self._op_counts[place_of(event.point, event.microbatch)]
            self._emit_kept(event, occurrence, [*event.earlier, *reads])
        self._op_counts.update(prelude.counts)
        self._settle(shift, keep=True)

    def _emit_kept(self, event: OpEvent, occurrence: int, reads: list[int]) -> None:
        self.emit(
            event.point,
            event.digest,
            event.microbatch,
            event.dtype,
            event.shape,
            reads,
            value=event.value,
            occurrence=occurrence,
            source=event.source,
        )

    def _settle(self, shift: int, *, keep: bool = False) -> None:
        """Give what refers to events between steps their final seqs."""
        self.writers.renumber(FIRST, lambda seq: seq + shift)
        self.numbers = [s + shift if s >= FIRST else s for s in self.numbers if keep or s >= FIRST]
        self.draws = {
            generator: seq + shift if seq >= FIRST else seq
            for generator, seq in self.draws.items()
            if keep or seq >= FIRST
        }

    def _close_step(self, *, ended: bool) -> None:
        if self._open:
            if lost := self.writers.num_in_flight():
                if self.ops:
                    self.blind_spots["collective output that no op read in its step"] += lost
                else:
                    reason = "collective output that was not waited for in its step"
                    self.blind_spots[reason] += lost
            if self._in_window:
                self._flush(close=True, ended=ended)
                self._steps.end_step(ended=ended)
            self._open = False

    def _flush(self, *, close: bool, ended: bool = True) -> None:
        if not len(self._columns) and self._is_flushed:
            return
        if not close and self.device_kernels.is_on:
            return  # Which kernels ran is known at the step's end.
        for seq, names in self.device_kernels.take().items():
            if seq >= self._columns.first_seq:
                self._columns.kernels[seq - self._columns.first_seq] = names
        self._is_flushed = close
        self._steps.write(self._columns, close=close, ended=ended)
        self._columns = EventColumns(self.step, self.next_seq())

    def close(self) -> None:
        """Put everything on disk and say that this rank has finished; safe to call twice."""
        if self._writer is None or not self.awake:
            return
        with torch._C.DisableTorchFunction():
            try:
                # An exception may have cut the step short: only an optimizer's step says it is whole.
                self._close_step(ended=self.boundary_due)
                self._steps.close()
                self._write_info(finished=True)
            except Exception as error:  # noqa: BLE001  # The program has ended well.
                self.fail(error)
        self.awake = False

    def fail(self, error: Exception) -> None:
        """Stop recording after an error, with one warning; the program goes on."""
        self.awake = False
        self.device_kernels.end()
        self._stopped = f"recording stopped in step {self.step}: {type(error).__name__}: {error}"
        if not isinstance(error, OSError):
            self._stopped += f" ({_where(error)})"
        self.blind_spots["recording stopped"] += 1
        if self._writer is not None:
            self._writer.abandon()
            try:
                self._write_info()
            except OSError as second:
                self._stopped += f"; the rank's file could not be updated: {second}"
        warn(f"{self._stopped}; the program goes on unrecorded")

    def _write_info(self, *, finished: bool = False) -> None:
        assert self._writer is not None
        info: dict[str, Any] = {
            "rank": self.rank,
            "environment": self._environment,
            "settings": self.settings.to_dict(),
            "blind_spots": dict(self.blind_spots),
            "finished": finished,
        }
        if self._stopped:
            info["stopped"] = self._stopped
        self._writer.write_info(info)

    # Steps

    def begin_explicit_step(self, number: int) -> bool:
        """End the open step so that the next event opens step `number`.

        Returns:
            False if the number does not grow.
        """
        self._explicit_steps = True
        if self._writer is not None:
            if number < self.step or (number == self.step and self.boundary_due):
                return False
            if number == self.step and self._open:
                return True
            self._close_step(ended=True)
        self.step = number
        self.boundary_due = False
        return True

    def optimizer_stepped(self) -> None:
        """Put the step on disk, which ends unless it is another optimizer's turn."""
        if self._open and self._in_window:
            self._flush(close=True)
        if not self._has_stepped:
            # By now the program has set its threads and process groups up, and not yet torn down.
            self._has_stepped = True
            self._environment = environment.describe()
            self._write_info()
        self.boundary_due = not self._explicit_steps

    # Events

    def next_seq(self) -> int:
        """Return the seq that the next event will get."""
        return self._columns.first_seq + len(self._columns)

    def microbatch_outside(self) -> int:
        """Return the microbatch of what runs outside of modules and backward passes.

        What comes after a backward pass (clipping, the optimizer) would belong to another one if
        there were more of them: it belongs to none, and counts as the first's.
        """
        alone = self.between_steps or self.has_gone_back or self.optimizer.options is not None
        return 0 if alone else self.microbatch

    def num_step_events(self) -> int:
        """Return how many events the open step has: a span that reads them all."""
        return self.next_seq() - self.step_first_seq

    def digest_of(self, seq: int) -> bytes | None:
        """Return the digest of a recent event, None once it has been flushed."""
        index = seq - self._columns.first_seq
        return bytes(self._columns.digests[16 * index : 16 * index + 16]) if index >= 0 else None

    def is_untrained(self) -> bool:
        """Return whether no backward pass has been seen yet."""
        is_first = self.step == self.settings.first_step
        return is_first and self.backward_first_seq <= self.step_first_seq

    def producer_of(self, tensor: torch.Tensor, view: PlainView | None) -> tuple[int | None, bool]:
        """Return the event that a tensor comes from, see `Producers.find`.

        Where ops are not recorded, that may also be what a collective left before the step began.
        """
        found = self.producers.find(tensor, view)
        if found[0] is None and view is not None and not self.ops:
            seq = self.writers.last_seq(view)
            if seq is not None and seq < FIRST:
                return seq, False
        return found

    def emit(
        self,
        point: Point,
        digest: bytes,
        microbatch: int | None = None,
        dtype: torch.dtype | str = "",
        shape: torch.Size | tuple[()] = (),
        reads: Sequence[int] = (),
        span: int = 0,
        value: float | None = None,
        occurrence: int | None = None,
        source: str | None = None,
    ) -> int:
        """Append one event to the open step and return its seq.

        Args:
            point: where in the program.
            digest: 16 bytes.
            microbatch: the current one by default, except for what belongs to all of them.
            dtype: of the tensor; `shape` too.
            reads: seqs of the events that it read.
            span: it also read so many events just before it.
            value: the number itself, for scalars.
            occurrence: nth event of this point in the step; counted if not given.
            source: see `SiteTable.number`.
        """
        if microbatch is None:
            microbatch = 0 if point.phase == "optimizer" else self.microbatch
        if occurrence is None:
            occurrences = self._occurrences
            again = (point, microbatch)
            occurrence = occurrences.get(again, 0)
            occurrences[again] = occurrence + 1
        site = self._sites.number((point, occurrence, dtype, shape), source)
        if value is not None:
            self._columns.values[len(self._columns)] = value
        return self._append(microbatch, site, digest, reads, span)

    def _append(
        self, microbatch: int, site: int, digest: bytes, reads: Sequence[int], span: int
    ) -> int:
        columns = self._columns
        seq = columns.append(microbatch, site, digest, reads, span)
        if len(columns) >= FLUSH_EVENTS:
            self._flush(close=False)
        return seq

    def emit_tensor(
        self,
        point: Point,
        tensor: torch.Tensor,
        view: PlainView | None = None,
        *,
        trust: bool = True,
        value: bool = False,
        follow: bool = True,
        remember: bool = True,
        microbatch: int | None = None,
        reads: Sequence[int] = (),
        span: int = 0,
    ) -> int | None:
        """Append the event of a tensor.

        Args:
            point: as for `emit`, and so are microbatch, reads and span.
            tensor: any tensor.
            view: what `host.look` returns for it, where that is at hand.
            trust: a digest taken at this version of the tensor may be used again.
            value: record a one-element tensor's number beside its digest.
            follow: who is given the tensor later is to read this event.
            remember: the tensor's digest may be needed again.

        Returns:
            The event's seq, or None (and a blind spot) if the tensor's bytes cannot be read.
        """
        if view is None:
            view = look(tensor)
        memory, is_known = None, True
        known: bytes | None = None
        if self.ops and (memory := _memory_of(tensor, view)) is not None:
            sources = self.writers.sources(memory)
            is_known = sources.known
            # At this rung it is known which events a tensor comes from.
            if settled := [seq for seq in sources.seqs if seq < FIRST]:
                reads, span = settled, 0
            if sources.has_hole and settled and not point.op:
                hole = point._replace(kind="uninitialised")
                seq = self.emit(hole, HOLE, microbatch, tensor.dtype, tensor.shape, reads, span)
                self.writers.put(memory, seq, is_hole=True)
                reads = [*reads, seq]
            # A small tensor is digested anew, which shows writes that no op made.
            if trust and memory.extent_bytes > SMALL_BYTES and not self.settings.rehash:
                known = self.writers.digest_of(memory)
        try:
            digest = known or self.cache.digest(tensor, view, trust=trust, remember=remember)
        except Undigestible as reason:
            self.blind_spots[str(reason)] += 1
            return None
        if self.settings.stats and (row := statistics(tensor)) is not None:
            self._columns.stats[len(self._columns)] = row
        number = self._number(tensor) if value else None
        seq = self.emit(point, digest, microbatch, tensor.dtype, tensor.shape, reads, span, number)
        if memory is not None and (not is_known or self.writers.contradicts(memory, digest)):
            self.writers.put(memory, seq, digest)
        if follow:
            self.producers.put(tensor, view, seq)
        return seq

    def emit_number(self, point: Point, number: float | torch.Tensor) -> None:
        """Append the event of a number of the program's own, or of a tensor that holds one."""
        if isinstance(number, torch.Tensor):
            if (late := self._late(number)) is not None:
                self.emit(point, late)
                return
            known = scalar(number)
            if known is None:
                self.blind_spots["graph capture"] += 1
                return
            number = known
        self.emit(point, digest_of_number(number), value=number)

    def _number(self, tensor: torch.Tensor) -> float | None:
        """Return the number that the next event's tensor holds, unless it comes later or is none."""
        if not is_number(tensor) or self._late(tensor) is not None:
            return None
        return scalar(tensor)

    def _late(self, tensor: torch.Tensor) -> bytes | None:
        """Let the number of the next event come later, if it can; return what stands for it."""
        if self._staging is None or not self._staging.takes(tensor):
            return None
        late = self._staging.number(tensor)
        self._columns.late_values[len(self._columns)] = late
        return self._staging.placeholder(late)

    def emit_standing(
        self,
        point: Point,
        standing: Standing,
        tensor: torch.Tensor,
        *,
        trust: bool,
        follow: bool = False,
        reads: Sequence[int] = (),
        span: int = 0,
    ) -> int | None:
        """Append the event of a tensor of the state, as `emit_tensor` does, and faster.

        Args:
            point: as for `emit_tensor`, and so are the others.
            standing: what is known of this tensor.
        """
        microbatch = 0 if point.phase == "optimizer" else self.microbatch
        again = (point, microbatch)
        if self._knows_standing and again not in self._occurrences:
            known = standing.site(tensor, point.phase)
            if known is not None:
                self._occurrences[again] = 1
                digest = standing.digest(tensor, self.cache, trust=trust)
                seq = self._append(microbatch, known, digest, reads, span)
                if follow:
                    self.producers.put(tensor, look(tensor), seq)
                return seq
        new = self.emit_tensor(
            point, tensor, trust=trust, follow=follow, microbatch=microbatch, reads=reads, span=span
        )
        if self._knows_standing and new is not None and self._occurrences[again] == 1:
            site = self._sites.number((point, 0, tensor.dtype, tensor.shape))
            standing.learn(tensor, point.phase, site)
        return new

    # Ops

    def count_op(self, place: OpPlace) -> int:
        """Return how many times an op was called within a place before, and count this time."""
        counts = self._prelude.counts if self.between_steps else self._op_counts
        count = counts[place]
        counts[place] = count + 1
        return count

    def emit_op(
        self,
        point: Point,
        occurrence: int,
        digest: bytes,
        microbatch: int,
        dtype: torch.dtype | str = "",
        shape: torch.Size | tuple[()] = (),
        reads: list[int] | None = None,
        earlier: list[int] | None = None,
        value: float | None = None,
        span: int = 0,
    ) -> int:
        """Append or keep one event of an op and return its seq, which may be provisional.

        Args:
            point: as for `emit`, and so are digest, dtype, shape, reads and value.
            occurrence: nth call of the op, see `count_op`.
            microbatch: the microbatch.
            earlier: seqs that it also read if it turns out to belong to the open step.
            span: it also read so many events just before it; none between steps.
        """
        reads = reads or []
        if self.between_steps:
            kept = [seq for seq in reads if seq >= FIRST]
            earlier = [*(earlier or ()), *(seq for seq in reads if seq < FIRST)]
            again = (point, occurrence)
            source = ""
            if again not in self._met_between_steps:
                self._met_between_steps.add(again)
                source = self.lines.of(point) or ""
            event = OpEvent(
                point, occurrence, microbatch, digest, dtype, shape, kept, earlier, value, source
            )
            return self._prelude.add(event)
        return self.emit(point, digest, microbatch, dtype, shape, reads, span, value, occurrence)

    def last_op_seq(self) -> int:
        """Return the seq of the last event, provisional between steps."""
        if self.between_steps:
            return FIRST + len(self._prelude.events) - 1
        return self.next_seq() - 1

    def note_stats(self, row: tuple[float, float, int] | None) -> None:
        """Note the statistics of the next event's tensor."""
        if row is not None:
            self._columns.stats[len(self._columns)] = row


def _memory_of(tensor: torch.Tensor, view: PlainView | None) -> PlainView | None:
    """Return where the bytes lie that ops work on: of a distributed tensor, its local shard's."""
    if view is None and isinstance(local := getattr(tensor, "_local_tensor", None), torch.Tensor):
        view = look(local)
    return view if view is not None and view.extent_bytes else None


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
