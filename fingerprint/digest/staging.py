"""Digests that come back from a device later, all of a step in one copy.

A digest is queued on the device, behind whatever the program has queued there, and goes to a row of
a buffer that exists already. The event gets a *placeholder* of 16 bytes instead. At the end of a
step the rows are copied to pinned memory by one asynchronous copy for each device; when it has
arrived, the placeholders are replaced. So nothing waits for a device within a step.

Tensors that nothing writes to meanwhile, as those that a step starts from, are digested together:
in one launch, however many they are.

A number (a loss, a norm) takes the same way: asking the device for it would wait as well.

This is done in a device's default stream only. In another stream the program may let memory be
reused as soon as its own work there is done, of which a digest that is queued later is no part.

A placeholder is 8 bytes that are drawn once per process and 8 bytes of number. A digest that begins
with the same 8 bytes is taken for one only if its other 8 bytes are a number in use, which by
chance happens once in 10^30.
"""

import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from fpdiff.fingerprint.digest.host import PlainView, check_readable, digest_bytes
from fpdiff.fingerprint.digest.mix128 import device

ROWS = 1 << 14
"""Digests that a device's buffer holds, 256 KiB; a step with more of them is copied in parts."""


class Copy(Protocol):
    """Rows on their way from a device's buffer to the host."""

    def is_done(self) -> bool:
        """Return whether they have arrived, without waiting."""

    def rows(self) -> bytes:
        """Return the rows, 16 bytes each; wait for them if need be."""


class Stream(Protocol):
    """A queue of work on a device, in which digests are computed and copied."""

    def put(self, tensor: torch.Tensor, row: int) -> None:
        """Queue the digest of a plain tensor into a row of the buffer."""

    def put_many(self, tensors: Sequence[torch.Tensor], row: int) -> None:
        """Queue the digests of row-major plain tensors into rows from `row` on."""

    def put_number(self, tensor: torch.Tensor, row: int) -> None:
        """Queue the one number of a plain tensor, as float64, into the first half of a row."""

    def copy(self, num_rows: int) -> Copy:
        """Queue a copy of the first rows; rows put afterwards do not change it."""


class Staging:
    """Keeps account of which digest is on its way for which placeholder."""

    def __init__(self, open_stream: Callable[[torch.Tensor], Stream] | None = None) -> None:
        """Start with nothing under way.

        Args:
            open_stream: makes the stream that work on a tensor's device is queued in.
        """
        self._open_stream = open_stream or DeviceStream
        self._streams: dict[torch.device, tuple[Stream, list[int]]] = {}
        self._is_together = False
        self._waiting: dict[torch.device, tuple[int, list[torch.Tensor]]] = {}  # from which row on
        self._mark = secrets.token_bytes(8)
        self._next = 0
        self._copies: list[tuple[list[int], Copy]] = []
        self._are_numbers: set[int] = set()  # those on their way
        # Since the last step's end, and before:
        self._arrived: list[dict[int, bytes | float]] = [{}, {}]

    def digest(self, tensor: torch.Tensor, view: PlainView) -> bytes:
        """Queue the digest of a plain tensor on a device and return a placeholder for it.

        Raises:
            Undigestible: see `host.check_readable`.
        """
        check_readable(tensor, view)
        stream, numbers = self._queue_of(tensor)
        if self._is_together and view.is_row_major:
            _, tensors = self._waiting.setdefault(tensor.device, (len(numbers), []))
            tensors.append(tensor)
        else:
            self._put_waiting(tensor.device)
            stream.put(tensor, len(numbers))
        return self.placeholder(self._take_row(numbers))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Digest in one launch what is given meanwhile, to which nothing writes until the end."""
        if self._is_together:  # Part of what is.
            yield
            return
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False
            for where in list(self._waiting):
                self._put_waiting(where)

    def _put_waiting(self, where: torch.device) -> None:
        row, tensors = self._waiting.pop(where, (0, []))
        if tensors:
            self._streams[where][0].put_many(tensors, row)

    def number(self, tensor: torch.Tensor) -> int:
        """Queue the number that a tensor holds (`host.is_number`); return its placeholder's number.

        What the placeholder stands for among digests is the digest of the number's text.
        """
        stream, numbers = self._queue_of(tensor)
        self._put_waiting(tensor.device)
        stream.put_number(tensor, len(numbers))
        self._are_numbers.add(self._next)
        return self._take_row(numbers)

    def placeholder(self, number: int) -> bytes:
        """Return the placeholder with a number."""
        return self._mark + number.to_bytes(8, "little")

    def _queue_of(self, tensor: torch.Tensor) -> tuple[Stream, list[int]]:
        """Return the stream of a tensor's device and what its buffer holds, which has room."""
        where = tensor.device
        if where not in self._streams:
            self._streams[where] = (self._open_stream(tensor), [])
        stream, numbers = self._streams[where]
        if len(numbers) == ROWS:
            self._put_waiting(where)
            self._begin_copy(stream, numbers)
        return stream, numbers

    def _take_row(self, numbers: list[int]) -> int:
        number = self._next
        self._next += 1
        numbers.append(number)
        return number

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's digest can come later: a default stream's queue has it."""
        if not tensor.is_cuda:
            return False
        where = tensor.device
        is_default: bool = torch.cuda.current_stream(where) == torch.cuda.default_stream(where)
        return is_default

    def begin_copies(self) -> int:
        """Send off what has been queued so far; return the number of the next placeholder."""
        for where, (stream, numbers) in self._streams.items():
            self._put_waiting(where)
            if numbers:
                self._begin_copy(stream, numbers)
        return self._next

    def has_arrived(self, until: int) -> bool:
        """Return whether the copies of all placeholders before a number are done."""
        return all(copy.is_done() for numbers, copy in self._copies if numbers[0] < until)

    def fill(self, digests: bytearray, until: int) -> None:
        """Replace the placeholders among digests by what they stand for, waiting if need be.

        Args:
            digests: 16 bytes each.
            until: what `begin_copies` returned after the last of them was made.
        """
        words = np.frombuffer(digests, "<u8").reshape(-1, 2)
        is_marked = words[:, 0] == np.frombuffer(self._mark, "<u8")
        found = np.flatnonzero(is_marked & (words[:, 1] < until))
        if not len(found):
            return
        self._receive(until)
        for index in found.tolist():
            row = self._row(int(words[index, 1]))
            digest = row if isinstance(row, bytes) else digest_of_number(row)
            words[index] = np.frombuffer(digest, "<u8")

    def values(self, late: Mapping[int, int], until: int) -> dict[int, float]:
        """Return the numbers that have come for placeholders, by whatever the caller knows them by.

        Args:
            late: numbers of placeholders.
            until: what `begin_copies` returned after the last of them was made.
        """
        if late:
            self._receive(until)
        return {key: float(self._row(number)) for key, number in late.items()}

    def end_step(self) -> None:
        """Forget what no event can ask for any more: an event may belong to the next step yet."""
        self._arrived = [{}, self._arrived[0]]

    def _begin_copy(self, stream: Stream, numbers: list[int]) -> None:
        self._copies.append((numbers.copy(), stream.copy(len(numbers))))
        numbers.clear()

    def _receive(self, until: int) -> None:
        copies = [entry for entry in self._copies if entry[0][0] < until]
        self._copies = [entry for entry in self._copies if entry[0][0] >= until]
        for numbers, copy in copies:
            rows = copy.rows()
            for index, number in enumerate(numbers):
                row = rows[16 * index : 16 * index + 16]
                if number in self._are_numbers:
                    self._are_numbers.remove(number)
                    (self._arrived[0][number],) = struct.unpack_from("<d", row)
                else:
                    self._arrived[0][number] = row

    def _row(self, number: int) -> bytes | float:
        newer, older = self._arrived
        return newer[number] if number in newer else older[number]


def digest_of_number(number: float) -> bytes:
    """Return the digest of a number of the program's own: that of its exact text."""
    return digest_bytes(number.hex().encode())


class DeviceStream:
    """A CUDA device's default stream, and the buffers that it is used with."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Make the buffers on a tensor's device."""
        self._stream = torch.cuda.default_stream(tensor.device)
        self._buffer = tensor.new_empty((ROWS, 2), dtype=torch.int64)
        self._slots = tensor.new_empty((device.MAX_SLOTS, 2), dtype=torch.int64)
        self._lists: dict[Any, Any] = {}

    def put(self, tensor: torch.Tensor, row: int) -> None:
        """Queue the digest of a plain tensor into a row of the buffer."""
        device.digest(tensor, out=self._buffer[row], slots=self._slots)

    def put_many(self, tensors: Sequence[torch.Tensor], row: int) -> None:
        """Queue the digests of row-major plain tensors into rows from `row` on."""
        device.digest_many(tensors, self._buffer[row : row + len(tensors)], self._lists)

    def put_number(self, tensor: torch.Tensor, row: int) -> None:
        """Queue the one number of a plain tensor, as float64, into the first half of a row."""
        with torch._C._DisableTorchDispatch():
            half = self._buffer[row, :1].view(torch.float64)
            half.copy_(tensor.detach().reshape(1))

    def copy(self, num_rows: int) -> "DeviceCopy":
        """Queue a copy of the first rows; what the stream runs afterwards does not change it."""
        # Pinned memory is torch's to reuse: after some steps nothing is allocated here.
        host = torch.empty((num_rows, 2), dtype=torch.int64, pin_memory=True)
        with torch.cuda.stream(self._stream):
            host.copy_(self._buffer[:num_rows], non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return DeviceCopy(host, event)


class DeviceCopy:
    """A copy in a CUDA stream, followed by an event."""

    def __init__(self, host: torch.Tensor, event: torch.cuda.Event) -> None:
        """Watch a copy to pinned memory."""
        self._host = host
        self._event = event

    def is_done(self) -> bool:
        """Return whether the rows have arrived."""
        is_done: bool = self._event.query()
        return is_done

    def rows(self) -> bytes:
        """Wait for the rows and return them."""
        self._event.synchronize()
        rows: bytes = self._host.numpy().tobytes()
        return rows
