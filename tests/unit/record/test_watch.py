"""What `fpdiff verify` compares: a disk that is full is no difference."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from fpdiff.fingerprint.record.watch import _Watch
from fpdiff.fingerprint.verify.check import first_difference
from fpdiff.store.errors import RecordError


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file of this process become larger, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 10, 38, 100])  # A line has 37 bytes.
@pytest.mark.filterwarnings("ignore:fpdiff. the parameters of pid .* are not watched")
def test_what_could_not_be_written_to_the_end_is_not_compared(tmp_path: Path, room: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
    for name, limit in (("bare", 1 << 20), ("watched", room)):
        (tmp_path / name).mkdir()
        watch = _Watch(tmp_path / name)
        with largest_file(limit):
            for _ in range(4):
                watch.after(optimizer, (), {})
        watch._file.close()
    for one, other in (("bare", "watched"), ("watched", "bare")):
        with pytest.raises(RecordError, match="rank 0 were not watched to the end: make room"):
            first_difference(tmp_path / one, tmp_path / other, tmp_path)
