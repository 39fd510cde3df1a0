"""Runs in short segments."""

import pytest

from fpdiff.store.writer import SegmentLimits


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SegmentLimits.__init__, "__kwdefaults__", {"steps": 2, "size_bytes": 64 << 20}
    )
