"""The whole way from a run to a certificate."""

from collections.abc import Iterable
from dataclasses import dataclass

from fpdiff.fingerprint.bisect.wording import counted, numbers_text
from fpdiff.fingerprint.certify.certificate import CHECKS, Certificate, Check
from fpdiff.fingerprint.certify.collectives import CollectiveCheck
from fpdiff.fingerprint.certify.ledger import Ledger
from fpdiff.fingerprint.certify.presence import check_presence
from fpdiff.fingerprint.certify.rank import Rank, describe
from fpdiff.fingerprint.certify.recompute import RecomputeCheck
from fpdiff.fingerprint.certify.replicas import ReplicaCheck
from fpdiff.fingerprint.certify.sites import Sites
from fpdiff.fingerprint.certify.stream import StepEvents, read_steps, to_arrays
from fpdiff.fingerprint.certify.unseen import notes, sum_blind_spots
from fpdiff.fingerprint.certify.whole import EventCheck, check_ending, check_files, check_rows
from fpdiff.store.checks import text
from fpdiff.store.errors import StoreError
from fpdiff.store.progress import Progress
from fpdiff.store.run import RankRecord, Run
from fpdiff.store.verify import Verifier


@dataclass
class _Counts:
    """How much was looked at."""

    files: int = 0
    events: int = 0
    steps: int = 0  # whose events were read, on all ranks
    unclosed: int = 0  # events of steps that are not closed


def certify_run(run: Run, *, progress: Progress | None = None) -> Certificate:
    """Check one run alone.

    A file that cannot be read is a finding; what can be read is checked.

    Args:
        run: the run.
        progress: called with (ranks done, ranks in all); each rank is looked at twice.

    Raises:
        StoreError: no rank has recorded anything, or files change while they are read.
    """
    if not run.ranks:
        raise StoreError(f"{run.path} has no rank: nothing was recorded, or its folders are gone")
    return _Certifier(run, progress).certify()


class _Certifier:
    """One run on its way; ranks are read one after another and let go."""

    def __init__(self, run: Run, progress: Progress | None) -> None:
        self._run = run
        self._progress = progress
        self._ledger = Ledger()
        self._sites = Sites()
        self._verifier = Verifier()
        self._ranks: dict[int, Rank] = {}
        self._counts = _Counts()
        self._replicas = ReplicaCheck(self._sites, self._ledger)
        self._recomputed = RecomputeCheck(self._sites, self._ledger)
        self._collectives = CollectiveCheck(self._sites, self._ranks, self._ledger)

    def certify(self) -> Certificate:
        """Check, first what step rows say, then the events."""
        for number in self._run.ranks:
            self._look(self._record(number))
            self._advance(len(self._ranks))
        ranks = list(self._ranks.values())
        present = check_presence(self._run, ranks, self._ledger)
        self._replicas.group()
        for done, rank in enumerate(ranks):
            self._read(rank, self._record(rank.rank))
            self._collectives.rank_done(rank.rank)
            self._advance(len(ranks) + done + 1)
        self._replicas.finish(self._events)
        return self._certificate(ranks, present)

    def _record(self, number: int) -> RankRecord:
        """Return a rank's record anew: the run's own would keep what it has read."""
        return RankRecord(self._run.path, number)

    def _advance(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, 2 * len(self._run.ranks))

    def _look(self, record: RankRecord) -> None:
        """Read a rank's description, its step rows and its first step."""
        number = record.rank
        rank = self._ranks[number] = Rank(number, "unreadable")
        try:
            rank = self._ranks[number] = describe(record)
        except StoreError as error:
            self._ledger.add("files", str(error), rank=number)
        try:
            rows = record.steps().to_pylist()
            rank.take_rows(rows)
            check_rows(rank, rows, self._ledger)
            if rows and rows[0]["events"]:
                self._replicas.begin(number, self._events(number, rank.steps[0], record))
        except StoreError as error:
            self._ledger.add("files", str(error), rank=number)
        check_ending(rank, record, self._run.info.get("exit_code"), self._ledger)

    def _read(self, rank: Rank, record: RankRecord) -> None:
        """Read all events of a rank."""
        self._counts.files += check_files(rank, record, self._verifier, self._ledger)
        try:
            numbering = self._sites.number(record)
            rows = record.steps().to_pylist()
            version = int(self._run.info["schema"])
            check = EventCheck(rank, rows, self._sites, self._ledger, version=version)
            for events in read_steps(record, numbering):
                closed = check.check(events)
                self._counts.unclosed += len(events) - len(closed)
                if not len(closed):
                    continue
                rank.read.add(closed.step)
                self._counts.steps += 1
                self._counts.events += len(closed)
                self._collectives.add(rank.rank, closed)
                self._recomputed.add(rank.rank, closed)
                self._replicas.add(rank.rank, closed)
        except StoreError as error:
            self._ledger.add("files", str(error), rank=rank.rank)

    def _events(self, number: int, step: int, record: RankRecord | None = None) -> StepEvents:
        """Return the events of a step, which must have some."""
        record = record or self._record(number)
        return to_arrays(record.events(step), self._sites.number(record))

    def _certificate(self, ranks: list[Rank], present: str) -> Certificate:
        findings = self._ledger.findings()
        steps = sorted({step for rank in ranks for step in rank.steps})
        num_steps = max(len(rank.steps) for rank in ranks)
        rung = text(self._run.info.get("level"))
        summary = (
            findings[0].text
            if findings
            else f"{counted(self._counts.events, 'event')} on {counted(len(ranks), 'rank')}"
            f" over {counted(num_steps, 'step')} ({numbers_text(steps)}), rung {rung}"
        )
        return Certificate(
            verdict="unsound" if findings else "sound",
            summary=summary,
            run=str(self._run.path),
            rung=rung,
            ranks=list(self._ranks),
            steps=[steps[0], steps[-1]] if steps else [],
            num_steps=num_steps,
            events=self._counts.events,
            checks=list(self._checks(ranks, present, rung)),
            findings=findings,
            num_findings=self._ledger.num_findings,
            blind_spots=sum_blind_spots(ranks),
            notes=list(notes(self._run, ranks)),
        )

    def _checks(self, ranks: list[Rank], present: str, rung: str | None) -> Iterable[Check]:
        counts = self._counts
        events = f"{counted(counts.events, 'event')} against {counted(counts.steps, 'step row')}"
        if counts.unclosed:
            events += f"; {counts.unclosed:,} of steps not closed were left out"
        finished = sum(rank.state == "finished" for rank in ranks)
        rests_on = {
            "files": f"{counted(counts.files, 'file')} read" if counts.files else "",
            "events": events if counts.steps else "",
            "ending": f"{finished:,} of {counted(len(ranks), 'rank')} finished",
            "presence": present,
            "collectives": self._collectives.rests_on(),
            "recomputation": self._recomputed.rests_on(),
            "replicas": self._replicas.rests_on(),
        }
        nothing = {
            "files": "no file could be read",
            "events": "no step is closed",
            "presence": "no rank's step rows could be read",
            "collectives": "rung step records none"
            if rung == "step"
            else "there was none between ranks that were read",
            "recomputation": "rung step records none" if rung == "step" else "there was none",
            "replicas": "only one rank was recorded"
            if len(ranks) == 1
            else "no parameter began equal on several ranks that were read",
        }
        for name in CHECKS:
            is_bad = self._ledger.has(name)
            result = "unsound" if is_bad else "sound" if rests_on[name] else "nothing"
            yield Check(name=name, result=result, rests_on=rests_on[name] or nothing[name])
