import dataclasses
import json
from pathlib import Path

import pytest
from synthetic import Shape, write_rank, write_run_json

from fpdiff.store.run import Run
from fpdiff.store.summary import RunSummary, summarize


@pytest.fixture
def summary(tmp_path: Path) -> RunSummary:
    write_run_json(tmp_path, ended=None, exit_code=None)
    info = {
        "environment": {"torch": "2.13.0", "threads": {"intra": 1}},
        "blind_spots": {"a": 1, "b": 5},
        "finished": True,
    }
    write_rank(tmp_path, 0, Shape(info=info))
    write_rank(tmp_path, 1, Shape(info=info | {"stopped": "disk full at step 2"}, steps=2))
    other = info | {"environment": {"torch": "2.12.1", "threads": {"intra": 1}}}
    write_rank(tmp_path, 2, Shape(info=other | {"finished": False}, close=False))
    write_rank(tmp_path, 3, Shape(info={}, steps=0, close=False))
    return summarize(Run.open(tmp_path))


def test_ranks(summary: RunSummary) -> None:
    assert [(r.rank, r.state, r.num_steps, r.last_step, r.num_events) for r in summary.ranks] == [
        (0, "finished", 5, 4, 30),
        (1, "stopped", 2, 1, 12),
        (2, "open", 5, 4, 30),
        (3, "open", 0, None, 0),
    ]
    assert summary.ranks[1].stopped == "disk full at step 2"


def test_totals(summary: RunSummary) -> None:
    assert (summary.first_step, summary.last_step, summary.num_steps) == (0, 4, 5)
    assert summary.num_events == 72
    assert summary.size_bytes == sum(r.size_bytes for r in summary.ranks)
    assert summary.blind_spots == {"b": 15, "a": 3}
    assert summary.command == ["python", "train.py"]
    assert summary.ended is None


def test_environment(summary: RunSummary) -> None:
    assert summary.environment == {"threads.intra": 1}
    assert summary.environment_differences == {"torch": {"2.13.0": [0, 1], "2.12.1": [2]}}


def test_it_is_json(summary: RunSummary) -> None:
    content = dataclasses.asdict(summary)
    assert json.loads(json.dumps(content)) == content
