"""Streams for `digest.staging` that complete late and out of order, on tensors of the host."""

from collections.abc import Callable, Sequence

import torch

from fpdiff.fingerprint.digest.mix128 import device
from fpdiff.fingerprint.digest.staging import ROWS, Staging


class LateCopy:
    """A copy of what a buffer held when the copy was queued; it arrives when it is told to."""

    def __init__(self, rows: torch.Tensor, log: list[str]) -> None:
        self.rows_then = rows.clone()
        self.has_arrived = False
        self._log = log

    def is_done(self) -> bool:
        return self.has_arrived

    def rows(self) -> bytes:
        self._log.append("used" if self.has_arrived else "waited")
        self.has_arrived = True
        data: bytes = self.rows_then.numpy().tobytes()
        return data


class LateStream:
    def __init__(
        self,
        copies: list[LateCopy],
        log: list[str],
        numbers: list[float],
        together_put: list[int],
    ) -> None:
        self.together_put = together_put
        self._buffer = torch.full((ROWS, 2), -1, dtype=torch.int64)
        self._copies = copies
        self._log = log
        self._numbers = numbers

    def put(self, tensor: torch.Tensor, row: int) -> None:
        device.digest(tensor, out=self._buffer[row])

    def put_many(self, tensors: Sequence[torch.Tensor], row: int) -> None:
        self.together_put.append(len(tensors))
        device.digest_many(tensors, self._buffer[row : row + len(tensors)], {})

    def put_number(self, tensor: torch.Tensor, row: int) -> None:
        number = self._buffer[row, :1].view(torch.float64)
        number.copy_(tensor.detach().reshape(1))
        self._numbers.append(float(number))

    def copy(self, num_rows: int) -> LateCopy:
        self._copies.append(LateCopy(self._buffer[:num_rows], self._log))
        return self._copies[-1]


class LateStaging(Staging):
    """Takes every tensor; `copies` are under way, and `log` says which of them were waited for.

    `numbers` are those that were queued as such, `together_put` how many digests at a time as one.

    Whenever a copy is begun, `arrive` is called with all copies so far.
    """

    def __init__(self, arrive: Callable[[list[LateCopy]], None] = lambda copies: None) -> None:
        self.copies: list[LateCopy] = []
        self.log: list[str] = []
        self.numbers: list[float] = []
        self.together_put: list[int] = []
        self._arrive = arrive
        known = self.copies, self.log, self.numbers, self.together_put
        super().__init__(lambda tensor: LateStream(*known))

    def takes(self, tensor: torch.Tensor) -> bool:
        return True

    def begin_copies(self) -> int:
        until = super().begin_copies()
        self._arrive(self.copies)
        return until
