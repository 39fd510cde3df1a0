"""Parameters that began equal on several ranks stay equal.

Which parameters those are is known from the first step of all ranks. Those that the same ranks
share make up a bundle, of which each step leaves one digest; parameters are looked at one by one
only in the first step in which the digests of a bundle differ.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, reduce

import numpy as np
import numpy.typing as npt

from fpdiff.fingerprint.bisect.arm import Flags, Ints
from fpdiff.fingerprint.bisect.wording import counted, ranks_text
from fpdiff.fingerprint.certify.ledger import Ledger
from fpdiff.fingerprint.certify.sites import Site, Sites
from fpdiff.fingerprint.certify.stream import StepEvents
from fpdiff.fingerprint.digest.host import digest_bytes
from fpdiff.store.schema import DIGEST_BYTES

_ONE = {
    "float64": b"\0\0\0\0\0\0\xf0\x3f",
    "float32": b"\0\0\x80\x3f",
    "float16": b"\0\x3c",
    "bfloat16": b"\x80\x3f",
}
"""The bytes of 1 in the dtypes that parameters have."""

MAX_CONSTANT_BYTES = 64 << 20
"""What is larger is not tried: what is set to zero or one, a bias or a norm's weight, is small."""

Words = npt.NDArray[np.uint64]


@dataclass
class _Series:
    """The digests that a rank's part of a bundle has at the start of each step."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    digests: bytearray = field(default_factory=bytearray)
    after: tuple[int, bytes, bytes] = (-1, b"", b"")  # step, which parameters, their digest

    def at(self, steps: Ints) -> npt.NDArray[np.uint8]:
        """Return the digests of steps that it has, (steps, 16)."""
        rows = np.frombuffer(bytes(self.digests), np.uint8).reshape(-1, DIGEST_BYTES)
        result: npt.NDArray[np.uint8] = rows[np.searchsorted(np.array(self.steps), steps)]
        return result


class ReplicaCheck:
    """Checks the parameters of all ranks: first `begin` for each, then `group`, then `add`."""

    def __init__(self, sites: Sites, ledger: Ledger) -> None:
        """Start with no rank."""
        self._sites = sites
        self._ledger = ledger
        self._begins: dict[int, tuple[int, Ints, Words]] = {}
        self._bundles: dict[tuple[int, ...], int] = {}
        self._bundle_of: dict[int, dict[int, int]] = {}  # by rank, by parameter
        self._series: dict[int, dict[int, _Series]] = {}  # by bundle, by rank
        self._num_parameters = 0

    def begin(self, rank: int, events: StepEvents) -> None:
        """Take in the first step of a rank."""
        self._begins[rank] = (events.step, *self._parameters(events, _starting))

    def group(self) -> None:
        """Find out which parameters began equal on which ranks."""
        begins, self._begins = self._begins, {}
        if len(begins) < 2:
            return
        [(first, _)] = Counter(step for step, _, _ in begins.values()).most_common(1)
        begins = {rank: begin for rank, begin in begins.items() if begin[0] == first}
        alike = {
            rank: digest_bytes(what.tobytes() + words.tobytes())
            for rank, (_, what, words) in begins.items()
        }
        what = np.concatenate([what for _, what, _ in begins.values()])
        words = np.concatenate([words for _, _, words in begins.values()])
        rank = np.repeat(list(begins), [len(what) for _, what, _ in begins.values()])
        order = np.lexsort((rank, words[:, 1], words[:, 0], what))
        what, words, rank = what[order], words[order], rank[order]
        new = (np.diff(what) != 0) | (np.diff(words.view(np.int64), axis=0) != 0).any(axis=1)
        ends = [*(np.flatnonzero(new) + 1).tolist(), len(what)]
        for start, end in zip([0, *ends], ends, strict=False):
            if end - start > 1:
                self._share(int(what[start]), words[start].tobytes(), rank[start:end], alike)

    def add(self, rank: int, events: StepEvents) -> None:
        """Take in a step of a rank."""
        bundle_of = self._bundle_of.get(rank)
        if not bundle_of:
            return
        for bundle, what, words in self._by_bundle(bundle_of, events, _starting):
            series = self._series[bundle].setdefault(rank, _Series())
            series.steps.append(events.step)
            series.digests += digest_bytes(what.tobytes() + words.tobytes())
        for bundle, what, words in self._by_bundle(bundle_of, events, _updated):
            series = self._series[bundle].setdefault(rank, _Series())
            series.after = events.step, digest_bytes(what.tobytes()), digest_bytes(words.tobytes())

    def finish(self, read: Callable[[int, int], StepEvents]) -> None:
        """Find what drifted.

        Args:
            read: returns the events of a step of a rank.
        """
        for series in self._series.values():
            if len(series) > 1:
                self._compare(series, read)

    def rests_on(self) -> str:
        """Say what was compared, "" if nothing."""
        if not self._bundles:
            return ""
        ranks = sorted({rank for ranks in self._bundles for rank in ranks})
        return (
            f"{counted(self._num_parameters, 'parameter')} that began equal on {ranks_text(ranks)}"
        )

    def _share(self, what: int, digest: bytes, ranks: Ints, alike: dict[int, bytes]) -> None:
        """Note that ranks began with an equal parameter.

        Shards that were all set to zero or to one are equal too, and no replicas. So such a
        parameter counts only between ranks that began equal in all of their parameters.
        """
        groups: dict[bytes, list[int]] = {}
        for rank in ranks.tolist():
            groups.setdefault(alike[rank], []).append(rank)
        if len(groups) > 1 and not self._is_constant(what, digest, len(alike)):
            groups = {b"": ranks.tolist()}
        shared = [tuple(group) for group in groups.values() if len(group) > 1]
        self._num_parameters += bool(shared)
        for group in shared:
            bundle = self._bundles.setdefault(group, len(self._bundles))
            self._series.setdefault(bundle, {})
            for rank in group:
                self._bundle_of.setdefault(rank, {})[what] = bundle

    def _is_constant(self, what: int, digest: bytes, num_ranks: int) -> bool:
        site = self._sites.rows[int(np.flatnonzero(self._sites.column(_parameter) == what)[0])]
        return digest in _constants(site.dtype, site.shape, num_ranks)

    def _compare(self, series: dict[int, _Series], read: Callable[[int, int], StepEvents]) -> None:
        steps = reduce(np.intersect1d, (np.array(one.steps) for one in series.values()))
        if not len(steps):
            return
        digests = np.stack([one.at(steps) for one in series.values()])
        differs: Flags = (digests != digests[0]).any(axis=(0, 2))
        if differs.any():
            at = int(np.flatnonzero(differs)[0])
            values = {rank: row[at].tobytes() for rank, row in zip(series, digests, strict=True)}
            self._tell(values, int(steps[at]), read, _starting)
            return
        # What the last step made of the parameters, no later step shows.
        last = {rank: one.after for rank, one in series.items()}
        if len({after[:2] for after in last.values()}) == 1 and last[next(iter(last))][0] >= 0:
            values = {rank: after[2] for rank, after in last.items()}
            if len(set(values.values())) > 1:
                self._tell(values, last[next(iter(last))][0], read, _updated)

    def _tell(
        self,
        values: dict[int, bytes],
        step: int,
        read: Callable[[int, int], StepEvents],
        when: Callable[[Site], bool],
    ) -> None:
        """Name what differs on the ranks that are not like most."""
        [(usual, _)] = Counter(values.values()).most_common(1)
        reference = next(rank for rank, value in values.items() if value == usual)
        drifted = [rank for rank, value in values.items() if value != usual]
        names = self._names(read(reference, step), read(drifted[0], step), when, drifted[0])
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        where = " in the optimizer's step" if when is _updated else ""
        for rank in drifted:
            text = f"parameter {names[0]}{more} drifted from rank {reference}{where}"
            self._ledger.add("replicas", text, rank=rank, step=step)

    def _names(
        self, a: StepEvents, b: StepEvents, when: Callable[[Site], bool], rank: int
    ) -> list[str]:
        what_a, words_a = self._parameters(a, when)
        what_b, words_b = self._parameters(b, when)
        both, in_a, in_b = np.intersect1d(what_a, what_b, return_indices=True)
        other = both[(words_a[in_a] != words_b[in_b]).any(axis=1)]
        known = self._bundle_of[rank]
        row_of = {what: i for i, what in enumerate(self._sites.column(_parameter).tolist())}
        rows = sorted(row_of[what] for what in other.tolist() if what in known)
        points = [self._sites.rows[row].point for row in rows]
        return [f"{point.module}.{point.slot}".lstrip(".") for point in points]

    def _by_bundle(
        self, bundle_of: dict[int, int], events: StepEvents, when: Callable[[Site], bool]
    ) -> list[tuple[int, Ints, Words]]:
        what, words = self._parameters(events, when)
        bundle = np.array([bundle_of.get(one, -1) for one in what.tolist()], np.int64)
        found = np.unique(bundle[bundle >= 0]).tolist()
        return [(one, what[bundle == one], words[bundle == one]) for one in found]

    def _parameters(self, events: StepEvents, when: Callable[[Site], bool]) -> tuple[Ints, Words]:
        """Return numbers of the parameters in a step, sorted, and their digests."""
        what = self._sites.column(_parameter)[events.site]
        at = np.flatnonzero((what >= 0) & (self._sites.column(when)[events.site] == 1))
        what, first = np.unique(what[at], return_index=True)
        return what, events.digest[at[first]]


@cache
def _constants(dtype: str, shape: tuple[int, ...], num_ranks: int) -> frozenset[bytes]:
    """Return the digests of a tensor, or a shard of it on one of some ranks, of zeros or ones."""
    one = _ONE.get(dtype)
    if one is None:
        return frozenset()
    total = math.prod(shape)
    sizes = {total}
    for dim in filter(None, shape):
        sizes |= {-(-dim // parts) * (total // dim) for parts in range(2, num_ranks + 1)}
    return frozenset(
        digest_bytes(pattern * size)
        for size in sizes
        if 0 <= size * len(one) <= MAX_CONSTANT_BYTES
        for pattern in (one, bytes(len(one)))
    )


# Columns of sites


def _parameter(site: Site) -> tuple[object, ...] | None:
    point = site.point
    return (point.module, point.slot, site.dtype, site.shape) if point.kind == "parameter" else None


def _starting(site: Site) -> bool:
    return site.point.phase == "init"


def _updated(site: Site) -> bool:
    return site.point.phase == "optimizer"
