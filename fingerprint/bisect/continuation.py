"""Which step of a run another run continues from: a resumed run counts from zero again."""

from collections import Counter
from typing import NamedTuple

from fpdiff.fingerprint.bisect.tier import Ranges
from fpdiff.store.errors import CompareError
from fpdiff.store.run import RankRecord, Run

_STATE = ("parameter", "buffer", "optimizer_state", "master", "option", "scaler", "generator")
_KEY = ("kind", "module", "slot")

_Key = tuple[str, ...]
_State = dict[_Key, bytes]


class Continuation(NamedTuple):
    """Where one run continues another.

    Attributes:
        shift: what to add to B's step numbers.
        note: what that rests on.
    """

    shift: int
    note: str


def find_continuation(a: Run, b: Run, steps: Ranges = ()) -> Continuation:
    """Find which step of one run starts as the other run's first step does.

    What a step starts from are parameters, buffers, the optimizer's tensors and options, scalers,
    generators and the batch. Of these, only what changes in the course of the longer run tells its
    steps apart. A resume may have lost some of it: the step that agrees in most is taken.

    Args:
        a: the run that is taken as the reference.
        b: the other.
        steps: look only among these of A, half-open ranges; all if empty.

    Raises:
        CompareError: no step agrees in anything that changes.
        StoreError: a run cannot be read.
    """
    rank = min(set(a.ranks) & set(b.ranks), default=None)
    if rank is None:
        raise CompareError(f"{a.path} and {b.path} have no rank in common")
    one, other = a.ranks[rank], b.ranks[rank]
    found = _best(one, other, steps), _best(other, one, ())
    if not any(found):
        raise CompareError(
            f"no step of {a.path} starts as the first of {b.path} does, nor the other way round:"
            " say its number with --first-step when recording"
        )
    # Some things may be equal by chance, such as a counter: the better of both ways counts.
    later, earlier = (match.share if match else 0.0 for match in found)
    if found[0] is not None and later >= earlier:
        match, names = found[0], "BA"
        shift = match.step - match.first
    else:
        assert found[1] is not None
        match, names = found[1], "AB"
        shift = match.first - match.step
    note = (
        f"{names[0]}'s step {match.first} starts as {names[1]}'s step {match.step} does"
        f" ({match.equal} of the {match.changing} things that steps change are equal):"
        " B's steps are counted from there"
    )
    return Continuation(shift, note)


class _Match(NamedTuple):
    """A step of one run that starts as the `first` of the other does, in `equal` respects."""

    step: int
    first: int
    equal: int
    changing: int

    @property
    def share(self) -> float:
        return self.equal / self.changing


def _best(long: RankRecord, short: RankRecord, steps: Ranges) -> _Match | None:
    """Return the step of the long run that starts most as the short one's first."""
    starts = short.steps()["step"].to_pylist()
    if not starts:
        return None
    first = starts[0]
    wanted = _state(short, first)
    candidates = {
        step: _state(long, step)
        for step in long.steps()["step"].to_pylist()
        if not steps or any(begin <= step < end for begin, end in steps)
    }
    values: dict[_Key, set[bytes]] = {}
    for state in candidates.values():
        for key, digest in state.items():
            values.setdefault(key, set()).add(digest)
    # Of a run of one step nothing is known to change.
    changing = {key for key, seen in values.items() if len(seen) > 1 or len(candidates) == 1}
    equal = Counter(
        {
            step: sum(state.get(key) == wanted.get(key) for key in changing & state.keys())
            for step, state in candidates.items()
        }
    )
    if not equal or not max(equal.values()):
        return None
    step = min(equal, key=lambda step: (-equal[step], abs(step - first)))
    return _Match(step, first, equal[step], len(changing))


def _state(record: RankRecord, step: int) -> _State:
    """Return the digests of what a step starts from, and of its batch, by where they belong."""
    sites = {
        row["site"]: tuple(row[name] for name in _KEY)
        for row in record.sites().to_pylist()
        if _is_start(row["phase"], row["kind"], row["slot"], row["op"])
    }
    events = record.events(step).select(["site", "digest"])
    found: _State = {}
    for site, digest in zip(events["site"].to_pylist(), events["digest"].to_pylist(), strict=True):
        if site in sites:
            found.setdefault(sites[site], digest.bytes)
    return found


def _is_start(phase: str, kind: str, slot: str, op: str | None) -> bool:
    if phase == "init":
        return kind in _STATE
    return phase == "forward" and kind == "input" and op is None and slot.startswith("arg.")
