"""What a run is, in one object: `summarize`."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from fpdiff.store.checks import text, whole
from fpdiff.store.files import attempts
from fpdiff.store.run import RankRecord, Run


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank."""

    rank: int
    state: str  # "finished", "stopped" (recording ended early) or "open" (recording, or killed)
    stopped: str | None  # why and where recording stopped
    first_step: int | None
    last_step: int | None
    num_steps: int
    num_events: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run and its ranks."""

    path: str
    command: list[str]
    created: str | None
    ended: str | None
    exit_code: int | None
    level: str | None
    digest: str | None
    settings: dict[str, Any]
    ranks: list[RankSummary]
    first_step: int | None
    last_step: int | None
    num_steps: int  # of the rank that has most
    num_events: int
    size_bytes: int
    environment: dict[str, Any]  # what all ranks have in common; nested keys joined with dots
    environment_differences: dict[str, dict[str, list[int]]]  # key -> value -> ranks
    compact: list[int]  # ranks whose small tables are read from consolidated ones
    attempts: list[str]  # folders of later attempts of the job, runs of their own
    blind_spots: dict[str, int]  # reason -> how often, on all ranks


def summarize(run: Run) -> RunSummary:
    """Return what `fpdiff show` shows.

    Raises:
        StoreError: a file of the run is damaged.
    """
    ranks = [_summarize_rank(record) for record in run.ranks.values()]
    common, differences = _environments(run)
    command = run.info.get("command")
    return RunSummary(
        path=str(run.path),
        command=[str(word) for word in command] if isinstance(command, list) else [],
        created=text(run.info.get("created")),
        ended=text(run.info.get("ended")),
        exit_code=whole(run.info.get("exit_code")),
        level=text(run.info.get("level")),
        digest=text(run.info.get("digest")),
        settings=run.settings,
        ranks=ranks,
        compact=[rank for rank, record in run.ranks.items() if record.is_compact],
        attempts=[str(run.path / name) for name in attempts(run.path)],
        first_step=min((r.first_step for r in ranks if r.first_step is not None), default=None),
        last_step=max((r.last_step for r in ranks if r.last_step is not None), default=None),
        num_steps=max((r.num_steps for r in ranks), default=0),
        num_events=sum(r.num_events for r in ranks),
        size_bytes=sum(r.size_bytes for r in ranks),
        environment=common,
        environment_differences=differences,
        blind_spots=_blind_spots(run),
    )


def _summarize_rank(record: RankRecord) -> RankSummary:
    steps = record.steps()["step"].to_pylist()
    return RankSummary(
        rank=record.rank,
        state=state_of(record),
        stopped=text(record.info.get("stopped")),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        num_steps=len(steps),
        num_events=record.num_events,
        size_bytes=record.size_bytes,
    )


def state_of(record: RankRecord) -> str:
    """Return how a rank's recording ended, as RankSummary.state says it."""
    if record.info.get("stopped"):
        return "stopped"
    return "finished" if record.info.get("finished") is True else "open"


def _environments(run: Run) -> tuple[dict[str, Any], dict[str, dict[str, list[int]]]]:
    by_rank = {
        rank: flatten(record.environment) for rank, record in run.ranks.items() if record.info
    }
    common: dict[str, Any] = {}
    differences: dict[str, dict[str, list[int]]] = {}
    for key in sorted({key for environment in by_rank.values() for key in environment}):
        values: dict[str, list[int]] = {}
        for rank, environment in by_rank.items():
            values.setdefault(str(environment.get(key)), []).append(rank)
        if len(values) == 1:
            common[key] = next(iter(by_rank.values())).get(key)
        else:
            differences[key] = values
    return common, differences


def flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as one, their keys joined with dots."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _blind_spots(run: Run) -> dict[str, int]:
    total: Counter[str] = Counter()
    for record in run.ranks.values():
        total.update(record.blind_spots)
    return dict(total.most_common())
