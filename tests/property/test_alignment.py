"""What holds for any two sequences of events, however they differ."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from synthetic_runs import Ev, write_steps

from fpdiff.fingerprint.bisect import align as align_module
from fpdiff.fingerprint.bisect.align import Aligned, align
from fpdiff.fingerprint.bisect.arm import Arm, Keys, Sites
from fpdiff.fingerprint.bisect.compare import compare_runs
from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.verdict import Origin, Verdict
from fpdiff.store.run import Run

POINTS = [
    ("init", "parameter", "l0", "weight"),
    ("init", "option", "", "lr"),
    ("init", "generator", "", "torch.cpu"),
    ("eval", "input", "", "arg.0"),
    ("eval", "output", "l0", "out.0"),
    ("forward", "input", "", "arg.0"),
    ("forward", "output", "l0", "out.0"),
    ("forward", "generator", "l0", "torch"),
    ("forward", "loss", "", "loss.0"),
    ("forward", "rewrite", "l0", "arg.0"),
    ("backward", "gradient", "l0", "grad.l0.out.0"),
    ("backward", "local_gradient", "l0", "grad.weight"),
    ("optimizer", "reduced_gradient", "l0", "grad.weight"),
    ("other", "metric", "", "norm"),
    ("other", "mark", "", "logits"),
]
OPS = [
    ("other", "result", "", "aten.mul.Tensor"),
    ("other", "written", "", "aten.add_.Tensor"),
    ("forward", "result", "l0", "aten.mul.Tensor"),
    ("forward", "result", "l0", "aten.tanh.default"),
]


@st.composite
def events(draw: st.DrawFn, min_size: int = 0) -> list[Ev]:
    """A step: any events, each of which reads some before it."""
    points = draw(st.lists(st.sampled_from(POINTS + OPS), min_size=min_size, max_size=12))
    made: list[Ev] = []
    for number, (phase, kind, module, slot) in enumerate(points):
        reads = [e.name for e in made if draw(st.booleans())] if number < 6 else []
        made.append(
            Ev(
                f"e{number}",
                kind,
                module,
                slot if (is_op := (phase, kind, module, slot) in OPS) is False else "out.0",
                phase,
                op=slot if is_op else None,
                reads=reads,
                span=draw(st.integers(0, 2)),
                microbatch=draw(st.integers(0, 1)),
                value=draw(st.integers(0, 2)),
            )
        )
    return made


def copied(made: list[Ev]) -> list[Ev]:
    return [Ev(**vars(event)) for event in made]


@contextmanager
def recorder() -> Iterator[Callable[[str, list[Ev]], Run]]:
    """Yield a function that makes a run of one rank and one step."""
    with tempfile.TemporaryDirectory() as folder:

        def record(name: str, step: list[Ev]) -> Run:
            # An event that every step has: none is empty, and no run has nothing to compare.
            always = Ev("always", "buffer", "always", "b", "init", value=0)
            return Run.open(write_steps(Path(folder) / name, [[always, *step]]))

        yield record


def aligned(a: Run, b: Run, step: int = 0) -> Aligned:
    keys = Keys()
    arms = []
    for run in (a, b):
        record = run.ranks[0]
        arms.append(Arm(record, step, Sites(record, keys, Lens(None, ()))))
    return align(*arms)


def place(origin: Origin) -> tuple[Any, ...]:
    # Calls of an operator pair by what they compute: the nth in one run may be another's in B.
    occurrence = origin.occurrence if origin.op is None else None
    here = (origin.phase, origin.kind, origin.module, origin.slot, occurrence)
    return (*here, origin.microbatch, origin.class_, origin.component)


def products(*values: int) -> list[Ev]:
    """Return calls of an operator outside the modules, by what they computed."""
    return [
        Ev(f"e{i}", "result", "", "out.0", "other", value=value, op="aten.mul.Tensor")
        for i, value in enumerate(values)
    ]


def sides(verdict: Verdict) -> Counter[Any]:
    return Counter(
        (place(o), o.a and o.a["digest"], o.b and o.b["digest"]) for o in verdict.origins
    )


quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(made=events())
def test_a_run_is_identical_to_itself(made: list[Ev]) -> None:
    with recorder() as record:
        verdict = compare_runs(record("a", made), record("b", made))
    assert verdict.verdict == "identical"
    assert not verdict.notes and not verdict.metrics


@quick
@given(one=events(), other=events())
@example(one=products(1, 1), other=products(0, 1, 0))
def test_any_two_runs_can_be_compared_and_none_is_reference(one: list[Ev], other: list[Ev]) -> None:
    with recorder() as record:
        a, b = record("a", one), record("b", other)
        there, back = compare_runs(a, b), compare_runs(b, a)
        rows = aligned(a, b)
    assert there.verdict == back.verdict
    assert there.effects == back.effects
    assert [m.name for m in there.metrics] == [m.name for m in back.metrics]
    row, mirrored = [v.rank_steps[0] if v.rank_steps else None for v in (there, back)]
    if row is not None and mirrored is not None:
        assert row.moved == mirrored.moved
        assert (row.only_a, row.only_b) == (mirrored.only_b, mirrored.only_a)
        # What one run has alone lies elsewhere if the others, state that says nothing included,
        # come in another order.
        if (np.diff(rows.index_b[rows.paired]) > 0).all():
            # Of two events that changed places either may be the one that moved, and only that one
            # differs.
            assert row.mismatched == mirrored.mismatched and row.carriers == mirrored.carriers
            swapped = Counter({(p, b, a): n for (p, a, b), n in sides(back).items()})
            assert sides(there) == swapped
    # Each event is in exactly one row.
    for index, arm in ((rows.index_a, rows.a), (rows.index_b, rows.b)):
        assert sorted(index[index >= 0].tolist()) == list(range(len(arm)))


@quick
@given(made=events(min_size=1), data=st.data())
def test_a_planted_difference_is_found_among_others(made: list[Ev], data: st.DataObject) -> None:
    """Events are inserted, removed and moved; one whose content differs is still told."""
    changed = copied(made)
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(changed)))
        what = data.draw(st.sampled_from(["insert", "remove", "move"]))
        if what == "insert":
            changed.insert(position, Ev(f"new{len(changed)}", "mark", "", "new", "other"))
        elif position < len(changed):
            event = changed.pop(position)
            if what == "move":
                changed.insert(data.draw(st.integers(0, len(changed))), event)
    planted = Ev("planted", "output", "planted", "out.0", value=1)
    position = data.draw(st.integers(0, min(len(made), len(changed))))
    made = copied(made)
    made.insert(position, planted)
    changed.insert(position, Ev(**(vars(planted) | {"twist": "other"})))
    with recorder() as record:
        verdict = compare_runs(record("a", made), record("b", changed))
    assert verdict.verdict == "diverged"
    [found] = [o for o in verdict.origins if o.module == "planted" and "differs" in o.summary]
    assert found.a and found.b and found.a["digest"] != found.b["digest"]
    assert found.class_ == "computation"


@quick
@given(made=events(), data=st.data())
def test_pairing_by_place_agrees_with_pairing_by_position(
    made: list[Ev], data: st.DataObject
) -> None:
    """Where both sequences are equal, the slow way says what the fast way does."""
    other = copied(made)
    for event in other:
        event.twist = data.draw(st.booleans())
    with recorder() as record:
        rows = aligned(record("a", made), record("b", other))
    count = np.arange(len(made) + 1)
    assert (rows.index_a == count).all() and (rows.index_b == count).all()
    assert (align_module._pair(rows.a, rows.b) == count).all()
    assert not rows.moved(np.ones(len(rows), bool)).size


@quick
@given(order=st.permutations(range(8)))
def test_what_did_not_move_rises(order: list[int]) -> None:
    kept = np.array(order)[align_module._longest_rise(np.array(order))]
    assert (np.diff(kept) > 0).all() and len(kept) >= 1
    best = [1] * len(order)
    for i, number in enumerate(order):
        best[i] = 1 + max((best[j] for j in range(i) if order[j] < number), default=0)
    assert len(kept) == max(best)
