"""Step digests: which step of a rank differs first, and what it does later.

Only the step rows are read, and of them the totals; the columns of the groups are read for steps
that differ. So a step costs a hundred bytes or a few, whatever the number of events, unless a lens
hides events; then each step is compared event by event. What was read is let go again with
`RankTier.release`, since a run may have thousands of ranks.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fpdiff.fingerprint.bisect.align import Aligned, align
from fpdiff.fingerprint.bisect.arm import (
    Arm,
    Flags,
    Ints,
    Keys,
    Site,
    Sites,
    digest_words,
    is_kind,
    is_start,
)
from fpdiff.fingerprint.bisect.differences import StepDifference, StepDifferences
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.origins import (
    beyond_the_end,
    find_origins,
    is_generator,
    listed_again,
)
from fpdiff.store.events import EventRows, one_piece
from fpdiff.store.parquet import Known
from fpdiff.store.run import RankRecord
from fpdiff.store.schema import DIGEST_BYTES, PHASES

Ranges = tuple[tuple[int, int], ...]

_SUMS = ("content", "structure")
_NOT_COMPARED = ["module_class", "source"]
"""Columns of sites in which runs may differ."""
_PLACE = ("phase", "kind", "module", "slot")
"""What names a part of the state."""
_APART = ("metrics", "generator")
"""Groups that are not in the totals."""
_WITHIN = (*PHASES, "loss", "parameters")
"""Groups that are: they can differ only where the totals do."""

Content = tuple[str | int, ...]
"""Which run, and what `Arm.content_of` returns."""

Likeness = tuple[int, tuple[int, ...], bytes]
"""Step, numbers of events, and the digests in which ranks alike agree."""


class _StepRows:
    """Step rows of one run and rank, as arrays in the order of the steps."""

    def __init__(self, table: pa.Table) -> None:
        numbers = table["step"].to_numpy()
        self.table = table if (np.diff(numbers) > 0).all() else table.sort_by("step")
        self.step: Ints = self.table["step"].to_numpy()
        self.events: Ints = self.table["events"].to_numpy()

    def digests(self, name: str, steps: Ints) -> pa.Array:
        """Return a column of digests at some steps, which it has."""
        column = one_piece(self.table[name]).storage
        if len(steps) == len(self.step):
            return column
        return column.take(pa.array(np.searchsorted(self.step, steps)))

    def batches(self) -> dict[int, bytes]:
        """Return the digest of each step's batch, for steps that have one."""
        column = one_piece(self.table["content_batch"]).storage.to_pylist()
        pairs = zip(self.step.tolist(), column, strict=True)
        return {step: digest for step, digest in pairs if digest is not None}


class _Source:
    """One run's record of a rank; reads lazily, and anew after it was let go."""

    def __init__(self, record: RankRecord, known: Known) -> None:
        self.record = record.anew(known=known)

    @cached_property
    def rows(self) -> _StepRows:
        """The totals of all steps."""
        names = [f"{what}{group}" for what in _SUMS for group in ("", *(f"_{g}" for g in _APART))]
        return _StepRows(self.record.steps(["ended", *names]))

    def groups(self, names: Iterable[str], steps: Ints) -> _StepRows:
        """Return columns of the groups for some steps, if not for more."""
        return _StepRows(self.record.steps(list(names), steps))

    def num_events_of(self, step: int) -> int:
        rows = self.rows
        return int(rows.events[np.searchsorted(rows.step, step)])

    def is_cut(self, step: int) -> bool:
        """Return whether the record ends in a step before the program had ended it.

        The last step in the journal of a rank that was killed may have lacked a second
        optimizer's turn.
        """
        rows = self.rows
        if step != rows.step[-1]:
            return False
        ended = rows.table["ended"][-1].as_py()
        return not (ended and self.record.info.get("finished"))


class RankTier:
    """The steps that both runs have of one rank.

    Attributes:
        steps: their numbers; `all_steps` those of A and of B.
        differences: what differs in which of them.
        likeness: equal for ranks of whose first differing step the same events are mismatched, as
            far as step rows tell: what differs is the optimizer's phase, in the same digests in
            both runs and over the same structure. None where they do not tell.
        idle: by step, ops that differ and lead to nothing.
        lasting: by step, what the next one that differs holds as its state.
        cut_short: which runs, "A" or "B", end within the last step compared, before the other.
        is_windowed: only some steps are compared.
        is_held: what was read is kept.
    """

    def __init__(self, a: RankRecord, b: RankRecord, *, lens: Lens, steps: Ranges) -> None:
        """Read the step rows, and compare.

        Args:
            a: the rank in run A.
            b: the rank in run B.
            lens: which events are compared.
            steps: compare only these, all if empty.

        Raises:
            StoreError: a file is damaged.
        """
        self._records = a, b
        self._lens = lens
        self.is_windowed = bool(steps)
        self.is_held = False
        self.idle: dict[int, int] = {}
        self.lasting: dict[int, frozenset[Content]] = {}
        self.likeness: Likeness | None = None
        for source in self._sources:
            source.record.announce_steps()
        own, other = (source.rows.step for source in self._sources)
        self.all_steps = own, other
        both, in_a, _ = np.intersect1d(own, other, assume_unique=True, return_indices=True)
        if steps:
            keep = np.zeros(len(both), bool)
            for first, end in steps:
                keep |= (both >= first) & (both < end)
            both, in_a = both[keep], in_a[keep]
        self.steps: Ints = both
        self._num_events: Ints = self._sources[0].rows.events[in_a]
        self.cut_short = self._cut_short()
        if lens.is_clear:
            self.differences = self._compare_rows()
            self._forgive_the_end()
        else:
            self.differences = self._compare_events()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process is to know: all but what can be read again."""
        read = ("_latest", "_sources", "sites")
        return {k: v for k, v in self.__dict__.items() if k not in read} | {"is_held": False}

    @property
    def num_events(self) -> int:
        """How many of A's events the comparison covers."""
        return int(self._num_events.sum())

    def num_events_of(self, step: int) -> int:
        """Return how many of A's events a step holds."""
        return int(self._num_events[self.num_steps_before(step)])

    def num_events_before(self, step: int) -> int:
        """Return how many of A's events the steps before one hold."""
        return int(self._num_events[: self.num_steps_before(step)].sum())

    def num_steps_before(self, step: int) -> int:
        """Return how many compared steps come before one."""
        return int(np.searchsorted(self.steps, step))

    def first_with(self, what: str) -> int | None:
        """Return the first step in which an attribute of StepDifference is set."""
        found = self.differences.having(what)
        return int(found[0]) if len(found) else None

    def is_unsure_of_parameters(self) -> bool:
        """Return whether only events can tell in which step some parameter differs first."""
        return self.first_with("parameters") != self.first_with("parameters_for_sure")

    def first_with_other_parameters(self) -> int | None:
        """Return the first step in which some parameter differs, not only their order.

        Where an optimizer goes through them in another order, or only through its own, the events
        have to tell. Parameters that differ once are taken to differ from then on.

        Raises:
            StoreError: a file is damaged.
        """
        steps = self.differences.having("parameters").tolist()
        certain = self.first_with("parameters_for_sure")
        unsure = [step for step in steps if certain is None or step < certain]
        if not unsure or self._has_other_parameters(unsure[0]):
            return int(steps[0]) if steps else None
        if certain is None and not self._has_other_parameters(unsure[-1]):
            return None
        place = bisect_left(unsure, 1, key=self._has_other_parameters)
        return unsure[place] if place < len(unsure) else certain

    def first_with_other_masters(self) -> int | None:
        """Return the first step in which a tensor differs that the optimizer holds and no module.

        Step rows do not tell; one that differs once is taken to differ from then on.

        Raises:
            StoreError: a file is damaged.
        """
        steps = self.differences.having("any").tolist()
        if not steps or not self.sites_having("master"):
            return None
        if not self._has_other_parameters(steps[-1], "master"):
            return None
        return int(steps[bisect_left(steps, 1, key=self._has_other_masters)])

    def _has_other_masters(self, step: int) -> bool:
        return self._has_other_parameters(step, "master")

    def _has_other_parameters(self, step: int, kind: str = "parameter") -> bool:
        found = _other_parameters(self.aligned(step), kind)
        self.release()
        return found

    def differs_at_end(self) -> bool:
        """Return whether the last step compared differs in a way that counts."""
        last = self.differences.get(int(self.steps[-1])) if len(self.steps) else None
        if last is None or not last.any:
            return False
        return not last.unsure or bool(find_origins(self.aligned(int(self.steps[-1]))))

    def aligned(self, step: int) -> Aligned:
        """Read and pair a step's events; the latest is remembered until `release`.

        Raises:
            StoreError: a file is damaged.
        """
        if self._latest is None or self._latest[0] != step:
            a, b = (
                Arm(source.record, step, sites, is_cut=source.is_cut(step))
                for source, sites in zip(self._sources, self.sites, strict=True)
            )
            self._latest = step, align(a, b)
        return self._latest[1]

    def has_at(self, step: int, site: Site) -> bool:
        """Return whether both runs recorded a point of the program in a step, of any description.

        Raises:
            StoreError: a file is damaged.
        """
        place = {name: site[name] for name in _PLACE}
        for source, sites in zip(self._sources, self.sites, strict=True):
            own = [
                row["site"] for row in sites.rows if place == {name: row[name] for name in _PLACE}
            ]
            found = pc.is_in(source.record.events(step)["site"], pa.array(own, pa.int64()))
            if not pc.any(found).as_py():
                return False
        return True

    def on_both(self, test: Callable[[RankRecord], bool]) -> bool:
        """Return whether the rank passes a test in both runs."""
        return all(map(test, self._records))

    def steps_of_equal_length(self, steps: Ints) -> Ints:
        """Return those of some compared steps that hold as many events in both runs."""
        if not self._lens.is_clear:  # It hides some of the events that step rows count.
            return steps[:0]
        counts = [s.rows.events[np.searchsorted(s.rows.step, steps)] for s in self._sources]
        found: Ints = steps[counts[0] == counts[1]]
        return found

    def events_of(
        self, steps: Ints, columns: Collection[str]
    ) -> tuple[Iterator[EventRows], Iterator[EventRows]]:
        """Return for A and B what yields columns of the events of some steps."""
        a, b = (source.record.events_of(steps, columns) for source in self._sources)
        return a, b

    @property
    def numbers_sites_alike(self) -> bool:
        """Whether both runs number the same sites alike, so that the numbers say all."""
        a, b = (s.record.sites().drop_columns(_NOT_COMPARED) for s in self._sources)
        return bool(a.equals(b))

    def sites_having(self, kind: str) -> list[Site]:
        """Return run A's sites of a kind."""
        return [site for site in self.sites[0].rows if site["kind"] == kind]

    def release(self) -> None:
        """Let go of everything that can be read again, unless `is_held`."""
        if self.is_held:
            return
        self._latest = None
        for name in ("_sources", "sites"):
            self.__dict__.pop(name, None)

    def batches(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the digest of each step's batch in A and in B, all steps they have."""
        a, b = (
            _StepRows(source.record.steps(["content_batch"])).batches() for source in self._sources
        )
        return a, b

    def generators_drawn_from(self) -> set[str]:
        """Return the generators whose states change between a run's first and last step."""
        used = set()
        for source, steps in zip(self._sources, self.all_steps, strict=True):
            ends = int(steps[0]), int(steps[-1])
            first, last = (_generator_states(source.record, step) for step in ends)
            used |= {name for name in first if first[name] != last.get(name)}
        return used

    def generators_that_differ(self, step: int) -> list[str]:
        """Return the generators whose states at the start of a step differ."""
        a, b = (_generator_states(source.record, step) for source in self._sources)
        return [name for name in a if name in b and a[name] != b[name]]

    _latest: tuple[int, Aligned] | None = None

    @cached_property
    def _sources(self) -> tuple[_Source, _Source]:
        # Where nothing differs, the files of two runs are often the same: they are decoded once.
        known: Known = {}
        a, b = (_Source(record, known) for record in self._records)
        return a, b

    @cached_property
    def sites(self) -> tuple[Sites, Sites]:
        """The sites of A and of B."""
        keys = Keys()
        a, b = (Sites(source.record, keys, self._lens) for source in self._sources)
        return a, b

    def _compare_rows(self) -> StepDifferences:
        steps = self.steps
        rows = [source.rows for source in self._sources]
        structure = _differs(rows, ["structure"], steps)
        total = structure | _differs(rows, ["content"], steps)
        flags = {g: _differs(rows, [f"{what}_{g}" for what in _SUMS], steps) for g in _APART}
        at = np.flatnonzero(total | flags["metrics"] | flags["generator"])
        flags = {name: flag[at] for name, flag in flags.items()}
        within = self._compare_groups(steps[total], has_structure=bool(structure.any()))
        for name, found in within.items():
            flags[name] = np.zeros(len(total), found.dtype)
            flags[name][total] = found
            flags[name] = flags[name][at]
        return StepDifferences(steps[at], flags)

    def _compare_groups(self, steps: Ints, *, has_structure: bool) -> dict[str, Any]:
        """Return the flags of StepDifferences for steps whose totals differ.

        Where no structure differs in total, none of a group does: it is not read.
        """
        sums = _SUMS if has_structure else _SUMS[:1]
        names = {group: [f"{what}_{group}" for what in sums] for group in _WITHIN}
        wanted = [name for group in names.values() for name in group]
        rows = [source.groups(wanted, steps) for source in self._sources if len(steps)]
        differs = {group: _differs(rows, columns, steps) for group, columns in names.items()}
        reordered = _differs(rows, ["structure_parameters"] if has_structure else [], steps)
        evaluated = [_words(found.digests("content_eval", steps))[1] for found in rows]
        has_a, has_b = evaluated or [np.zeros(0, bool)] * 2
        only_evaluation = _only("eval", differs)
        if len(steps) and _only("optimizer", differs)[0]:
            self.likeness = self._likeness(int(steps[0]), rows)
        return {
            # The phases of an evaluation that only one run made are all that differs: the other
            # phases hold the same events in the same order.
            "any": ~(only_evaluation & (has_a != has_b)),
            "unsure": only_evaluation & (has_a == has_b),
            "evaluation": np.where(has_a == has_b, 0, np.where(has_a, 1, 2)).astype(np.int8),
            "loss": differs["loss"],
            "parameters": differs["parameters"],
            "parameters_for_sure": differs["parameters"] & ~reordered,
            "backward": differs["backward"],
        }

    def _likeness(self, step: int, rows: list[_StepRows]) -> "Likeness | None":
        """Return what tells ranks alike whose difference is in the optimizer's phase alone."""
        totals = [source.rows for source in self._sources]
        at = np.array([step])
        if _differs(totals, ["structure"], at)[0] or any(s.is_cut(step) for s in self._sources):
            return None
        columns = ["structure", *(f"structure_{group}" for group in _APART)]
        digests = [found.digests(name, at) for found in totals for name in columns]
        digests += [found.digests("content_optimizer", at) for found in rows]
        counts = tuple(source.num_events_of(step) for source in self._sources)
        parts = map(_words, digests)
        return step, counts, b"".join(bytes(valid) + words.tobytes() for words, valid in parts)

    def _cut_short(self) -> list[str]:
        # Of other rungs, more events are no longer record.
        if not len(self.steps) or not self._lens.is_clear:
            return []
        last = int(self.steps[-1])
        sources = dict(zip("AB", self._sources, strict=True))
        events = {name: source.num_events_of(last) for name, source in sources.items()}
        return [
            name
            for name, source in sources.items()
            if source.is_cut(last) and events[name] < max(events.values())
        ]

    def _forgive_the_end(self) -> None:
        """Look at the last step's events where one run's record ends within it."""
        last = int(self.steps[-1]) if len(self.steps) else 0
        difference = self.differences.get(last)
        if difference is not None and difference.any and self.cut_short:
            difference = _event_difference(self.aligned(last))
            counts = difference.any or difference.metrics or difference.generator
            self.differences = self.differences.ending(last, difference if counts else None)

    def _compare_events(self) -> StepDifferences:
        found = {}
        counts = []
        for step in self.steps.tolist():
            aligned = self.aligned(step)
            counts.append(len(aligned.a))
            if not aligned.equal.all() or find_origins(aligned):
                found[step] = _event_difference(aligned)
        self._num_events = np.array(counts, np.int64)
        return StepDifferences.of(found)


def _only(phase: str, differs: dict[str, Flags]) -> Flags:
    """Return at which steps one phase differs and no other."""
    others = [differs[other] for other in PHASES if other != phase]
    result: Flags = differs[phase] & ~np.logical_or.reduce(others)
    return result


def _differs(rows: list[_StepRows], names: list[str], steps: Ints) -> Flags:
    """Return at which steps any of some columns differs between two runs."""
    result: Flags = np.zeros(len(steps), bool)
    if len(steps):
        for name in names:
            a, b = (found.digests(name, steps) for found in rows)
            if not a.equals(b):
                (words_a, valid_a), (words_b, valid_b) = map(_words, (a, b))
                result |= (words_a != words_b).any(axis=1) | (valid_a != valid_b)
    return result


def _words(column: pa.Array) -> tuple[npt.NDArray[np.uint64], Flags]:
    """Return digests as (digests, 2) words, and where there are any."""
    valid: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all():
        column = pc.fill_null(column, pa.scalar(bytes(DIGEST_BYTES), column.type))
    return digest_words(column), valid


def _other_parameters(aligned: Aligned, kind: str = "parameter") -> bool:
    """Return whether some parameter differs, or some tensor of another kind.

    Where only one run's optimizer updated it, it being another rank's share say, the next step's
    start tells.
    """
    differs = ~aligned.equal & aligned.having(is_kind(kind)) & ~listed_again(aligned)
    return bool((differs & (aligned.paired | aligned.having(is_start))).any())


def _event_difference(aligned: Aligned) -> StepDifference:
    different = ~aligned.equal & ~beyond_the_end(aligned)
    findings = find_origins(aligned)

    def kind(name: str) -> bool:
        return bool((different & aligned.having(is_kind(name))).any())

    parameters = _other_parameters(aligned)
    only_a = findings.num_evaluations and (different & (aligned.index_b < 0)).any()
    return StepDifference(
        any=bool(findings),
        evaluation="" if not findings.num_evaluations else "A" if only_a else "B",
        loss=kind("loss"),
        parameters=parameters,
        parameters_for_sure=parameters,
        metrics=kind("metric"),
        generator=bool((different & aligned.having(is_generator)).any()),
        backward=kind("local_gradient"),
    )


def _generator_states(record: RankRecord, step: int) -> dict[str, Any]:
    sites = record.sites()
    wanted = pc.and_(pc.equal(sites["kind"], "generator"), pc.equal(sites["phase"], "init"))
    found = sites.filter(wanted)
    names = dict(zip(found["site"].to_pylist(), found["slot"].to_pylist(), strict=True))
    table = record.events(step).select(["site", "digest"])
    table = table.filter(pc.is_in(table["site"], one_piece(found["site"])))
    return {names[e["site"]]: e["digest"] for e in table.to_pylist()}
