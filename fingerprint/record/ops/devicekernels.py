"""Names of the kernels that operators launch on a device, as torch's own profiler tells them.

While the profiler runs, each recorded call of an operator is marked. A kernel belongs to the call
within whose mark it was launched, in this thread or in one of autograd's, whenever it ran.

The profiler runs from the moment a step has been opened to the step's end, for what this thread
does and autograd does for it. Only one can run: the program's own has precedence.
"""

import contextlib
import functools
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch._C import _autograd
from torch._C._profiler import (
    ProfilerConfig,
    ProfilerState,
    _ExperimentalConfig,
    _RecordFunctionFast,
)
from torch.profiler import ProfilerActivity, supported_activities

from fpdiff.fingerprint.record.events.prelude import FIRST
from fpdiff.fingerprint.record.ops.call import Call
from fpdiff.fingerprint.record.wrapping import wrap

_MARK = "fpdiff."


class Activity(NamedTuple):
    """Something that the profiler has seen.

    Attributes:
        name: of an operator, a mark or a kernel.
        id: of what ran on the host.
        launched_by: id of the innermost operator or mark that launched it, 0 if nothing did.
        thread: that it ran in.
        start_ns: when it began.
        end_ns: when it ended.
        on_device: it ran on a device.
    """

    name: str
    id: int
    launched_by: int
    thread: int
    start_ns: int
    end_ns: int
    on_device: bool


def by_mark(activities: Iterable[Activity]) -> dict[int, list[str]]:
    """Return the names of the kernels launched within each mark, in order of their start."""
    launchers: dict[int, Activity] = {}
    marks: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # (start, end, number)
    kernels = []
    for activity in activities:
        if activity.on_device:
            kernels.append(activity)
        elif not activity.launched_by:
            launchers[activity.id] = activity
            if activity.name.startswith(_MARK):
                number = int(activity.name.removeprefix(_MARK))
                marks[activity.thread].append((activity.start_ns, activity.end_ns, number))
    for own in marks.values():
        own.sort()
    found: dict[int, list[str]] = {}
    for kernel in sorted(kernels, key=lambda k: k.start_ns):
        launcher = launchers.get(kernel.launched_by)
        if launcher is None:
            continue
        around = _innermost(marks.get(launcher.thread, []), launcher.start_ns)
        if around is not None:
            found.setdefault(around, []).append(kernel.name)
    return found


class DeviceKernels:
    """Follows which kernels the calls of operators launch."""

    def __init__(self, blind_spots: Counter[str]) -> None:
        """Begin with nothing; what cannot be seen is counted among the blind spots."""
        self.is_on = False
        self._blind_spots = blind_spots
        self._thread = 0
        self._last = 0
        self._seqs: dict[int, list[int]] = {}  # by mark, of what the call has made
        self._open: dict[int, Any] = {}  # the program's own marks that have not ended, by id
        self._names: dict[int, list[str]] = {}

    # A step

    def begin(self) -> None:
        """Start the profiler if a device is in use."""
        activities = to_follow()
        if self.is_on or not activities:
            return
        if _autograd._profiler_enabled():
            self._note_other()
            return
        config = ProfilerConfig(
            ProfilerState.KINETO, False, False, False, False, False, _ExperimentalConfig(), ""
        )
        _autograd._prepare_profiler(config, activities)
        _autograd._enable_profiler(config, activities)
        self.is_on, self._thread = True, threading.get_ident()

    def mark(self, call: Call) -> AbstractContextManager[Any]:
        """Return what a call is to run in."""
        if not self.is_on:
            return contextlib.nullcontext()
        self._last += 1
        call.mark = self._last
        mark: AbstractContextManager[Any] = _RecordFunctionFast(f"{_MARK}{self._last}")
        return mark

    def note(self, call: Call, seq: int) -> None:
        """Note an event that a marked call has made."""
        if seq < FIRST:
            self._seqs.setdefault(call.mark, []).append(seq)

    def take(self) -> dict[int, list[str]]:
        """Stop, and return the names of the kernels behind the step's events, by their seq."""
        self.end()
        names, self._names = self._names, {}
        seqs, self._seqs = self._seqs, {}
        return {seq: names[mark] for mark in seqs if mark in names for seq in seqs[mark]}

    def end(self) -> None:
        """Stop the profiler, if it runs and this thread may."""
        if not self.is_on or threading.get_ident() != self._thread or _is_capturing():
            return
        self.is_on = False
        # Torch forgets the profiler that a mark began in: one that ended under another would write
        # into memory that is no longer there.
        for mark in self._open.values():
            torch.ops.profiler._record_function_exit._RecordFunction(mark.record)
        self._open.clear()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # What has not run yet has no name.
        self._names |= by_mark(_activities(_autograd._disable_profiler()))

    def forget_in_child(self) -> None:
        """A forked child has the profiler's memory and not its end: let nothing be added there."""
        if self.is_on:
            self.is_on = False
            _autograd._enable_record_function(False)

    # The program's own profiler

    def watch(self) -> Callable[[], None]:
        """Give way to the program's own profiler from now on; return the function that ends it."""
        give_way = functools.partial(_before, self._give_way)
        enter = functools.partial(_after, self._entered)
        leave = functools.partial(_before, self._left)
        unwrap = wrap(
            {
                "torch.autograd.profiler": [
                    ("", "_prepare_profiler", give_way),
                    ("", "_enable_profiler", give_way),
                    ("record_function", "__enter__", enter),
                    ("record_function", "__exit__", leave),
                ]
            }
        )

        def end() -> None:
            unwrap()
            self.end()

        return end

    def _give_way(self, *_: Any) -> None:
        if self.is_on:
            self._note_other()
            self.end()

    def _note_other(self) -> None:
        self._blind_spots["kernels of operators: the program's own profiler was running"] += 1

    def _entered(self, mark: Any) -> None:
        if self.is_on and threading.get_ident() == self._thread:
            self._open[id(mark)] = mark

    def _left(self, mark: Any, *_: Any) -> None:
        self._open.pop(id(mark), None)


def to_follow() -> set[ProfilerActivity]:
    """Return what must be profiled to see kernels, nothing where no device is in use."""
    if not torch.cuda.is_initialized():
        return set()
    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    return wanted if wanted <= supported_activities() else set()


def _activities(result: Any) -> Iterable[Activity]:
    for event in result.events():
        on_device = event.device_type() != _autograd.DeviceType.CPU
        if on_device and event.is_user_annotation():
            continue  # The range of a mark, drawn on the device.
        yield Activity(
            event.name(),
            event.correlation_id(),
            event.linked_correlation_id(),
            event.start_thread_id(),
            event.start_ns(),
            event.end_ns(),
            on_device,
        )


def _innermost(marks: list[tuple[int, int, int]], moment: int) -> int | None:
    """Return the number of the last begun mark that a moment is in."""
    for index in range(bisect_right(marks, (moment, 1 << 63, 0)) - 1, -1, -1):
        _, end, number = marks[index]
        if moment <= end:
            return number
    return None


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _before(body: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        body(*args)
        return original(*args, **kwargs)

    return wrapped


def _after(body: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        body(*args)
        return result

    return wrapped
