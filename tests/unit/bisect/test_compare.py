"""From two recorded runs to the verdict: every kind of difference is named where it began."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import (
    Edit,
    Ev,
    Job,
    amend,
    at,
    diverged,
    ev,
    find,
    insert,
    remove,
    twist,
    verdict_of,
)

from fpdiff.fingerprint.bisect.verdict import Origin
from fpdiff.store.errors import CompareError


def place(origin: Origin) -> tuple[Any, ...]:
    return origin.rank, origin.step, origin.phase, origin.module, origin.kind, origin.slot


@pytest.mark.parametrize("parquet", [False, True])
def test_twins_are_identical(tmp_path: Path, parquet: bool) -> None:
    never = at(99, None, twist("loss"))
    verdict = diverged(tmp_path, never, ranks=[0, 1], microbatches=2, parquet=parquet)
    assert (verdict.verdict, verdict.exit_code) == ("identical", 0)
    assert not any((verdict.origins, verdict.receivers, verdict.rank_steps, verdict.notes))
    assert verdict.first_step is None and verdict.next is None
    assert verdict.summary == (
        "identical: 296 events on 2 ranks over 4 steps (steps 0-3), rung layer"
    )


def insert_module(events: list[Ev]) -> None:
    insert(
        events,
        "l1.out",
        ev("new.out", "output", "new", reads=["l0.out"]),
        ev("new2.out", "output", "new", "out.1", reads=["new.out"]),
    )


def swap(one: str, other: str) -> Callable[[list[Ev]], None]:
    def change(events: list[Ev]) -> None:
        i, j = events.index(find(events, one)), events.index(find(events, other))
        events[i], events[j] = events[j], events[i]

    return change


def rewrite(events: list[Ev]) -> None:
    new = ev("rewrite", "rewrite", "l1", "arg.0", reads=["l0.out"], twist="a bit")
    insert(events, "l1.out", new)
    find(events, "l1.out").reads.append("rewrite")


PLANTED: dict[str, tuple[Callable[[list[Ev]], object], str, str | None, tuple[str, ...]]] = {
    "data": (twist("batch"), "data", None, ("forward", "", "input", "arg.0")),
    "parameter": (
        twist("l1.weight"),
        "state",
        "parameter",
        ("init", "l1", "parameter", "weight"),
    ),
    "buffer": (twist("norm.mean"), "state", "buffer", ("init", "norm", "buffer", "mean")),
    "optimizer state": (
        twist("l0.exp_avg"),
        "state",
        "optimizer state",
        ("init", "l0", "optimizer_state", "weight.exp_avg"),
    ),
    "master": (
        twist("master"),
        "state",
        "master weights",
        ("init", "", "master", "optimizer0.group0.9"),
    ),
    "option": (
        twist("lr"),
        "state",
        "param_group option",
        ("init", "", "option", "optimizer0.group0.lr"),
    ),
    "scaler": (
        twist("scale"),
        "state",
        "gradient scaler",
        ("init", "", "scaler", "scaler0.scale"),
    ),
    "training flag": (
        twist("training"),
        "state",
        "training flag",
        ("init", "", "training_flag", "training"),
    ),
    "state of a teacher": (
        amend("norm.mean", module="~Teacher", twist="x"),
        "state",
        "buffer of a module outside the root",
        ("init", "~Teacher", "buffer", "mean"),
    ),
    "rng": (twist("draw"), "rng", None, ("forward", "l1", "generator", "torch")),
    "forward": (twist("l0.out"), "computation", None, ("forward", "l0", "output", "out.0")),
    "loss": (twist("loss"), "computation", None, ("forward", "", "loss", "loss.0")),
    "backward": (
        twist("back l1"),
        "computation",
        None,
        ("backward", "l1", "gradient", "grad.l1.out.0"),
    ),
    "optimizer": (
        twist("l0.weight'"),
        "computation",
        None,
        ("optimizer", "l0", "parameter", "weight"),
    ),
    "dtype": (
        amend("l0.out", dtype="bfloat16", twist="x"),
        "metadata",
        None,
        ("forward", "l0", "output", "out.0"),
    ),
    "shape": (
        amend("batch", shape=(8, 8), twist="x"),
        "metadata",
        None,
        ("forward", "", "input", "arg.0"),
    ),
    "module more": (insert_module, "structure", None, ("forward", "new", "output", "out.0")),
    "module less": (
        lambda events: remove(events, "l0.out"),
        "structure",
        None,
        ("forward", "l0", "output", "out.0"),
    ),
    "order": (
        swap("l0.out", "draw"),
        "structure",
        None,
        ("forward", "l0", "output", "out.0"),
    ),
    "overwritten": (rewrite, "unseen-producer", None, ("forward", "l1", "rewrite", "arg.0")),
}


def test_the_order_in_which_state_is_listed_is_no_divergence(tmp_path: Path) -> None:
    a = Job().arm(tmp_path / "a")
    b = Job(edit=at(None, None, swap("norm.mean", "l0.exp_avg"))).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    assert (verdict.verdict, verdict.effects.parameters) == ("identical", None)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_named(tmp_path: Path, name: str) -> None:
    change, class_, component, where = PLANTED[name]
    edit_a = None
    if name == "state of a teacher":
        edit_a = at(None, None, amend("norm.mean", module="~Teacher"))

    def edit_b(step: int, rank: int, events: list[Ev]) -> None:
        if edit_a is not None:
            edit_a(step, rank, events)
        if step == 2:
            change(events)

    a = Job(edit=edit_a).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(edit=edit_b).arm(tmp_path / "b"))
    assert (verdict.verdict, verdict.exit_code, verdict.first_step) == ("diverged", 1, 2)
    first = verdict.origins[0]
    assert (first.class_, first.component) == (class_, component)
    assert place(first) == (0, 2, *where)
    assert verdict.num_origins == 1
    assert class_ in verdict.summary and "rank 0, step 2" in verdict.summary
    assert first.hint is not None


def test_events_of_one_side_are_one_finding(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, at(2, 0, insert_module))
    assert (verdict.num_origins, verdict.origins[0].count) == (1, 2)
    assert verdict.origins[0].a is None and verdict.origins[0].b is not None
    row = verdict.rank_steps[0]
    assert (row.only_a, row.only_b, row.moved) == (0, 2, 0)


def test_two_insertions_far_apart_are_two_findings(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        insert(events, "l0.out", ev("x", "output", "x"))
        insert(events, "back l1", ev("y", "mark", "", "y", phase="other"))

    verdict = diverged(tmp_path, at(1, 0, edit))
    assert [(o.kind, o.count) for o in verdict.origins] == [("output", 1), ("mark", 1)]


def test_state_of_a_module_more_is_one_finding(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        new = [ev(f"n{n}", "parameter", "new", f"w{n}", phase="init") for n in range(5)]
        insert(events, "norm.mean", *new)

    [origin] = diverged(tmp_path, at(1, 0, edit)).origins
    assert (origin.class_, origin.component, origin.count) == ("state", "parameter", 5)
    assert origin.summary == "parameter new.w0 exists only in B"


def test_an_optimizer_that_goes_through_its_parameters_in_another_order_is_one_finding(
    tmp_path: Path,
) -> None:
    def swap_pairs(events: list[Ev]) -> None:
        for one, other in (("l0", "l1"), ("l2", "l3")):
            first, second = (events.index(find(events, f"{m}.weight'")) for m in (one, other))
            events[first : first + 2], events[second : second + 2] = (
                events[second : second + 2],
                events[first : first + 2],
            )

    [origin] = diverged(tmp_path, at(1, 0, swap_pairs), layers=4).origins
    assert (origin.class_, origin.phase) == ("structure", "optimizer")
    assert "after the optimizer's step (and 3 more) comes at another place" in origin.summary


def test_swapped_modules_are_told_as_moved_though_their_contents_differ(tmp_path: Path) -> None:
    # Each explains the other: l0 reads l1 in one run and l1 reads l0 in the other.
    def edit(events: list[Ev]) -> None:
        remove(events, "draw")
        one, other = find(events, "l0.out"), find(events, "l1.out")
        one.reads, other.reads = ["l1.out", "l0.weight"], ["batch", "l1.weight"]
        swap("l0.out", "l1.out")(events)

    a = Job(edit=at(None, 0, lambda e: remove(e, "draw"))).arm(tmp_path / "a")

    def edit_b(step: int, rank: int, events: list[Ev]) -> None:
        edit(events) if step == 1 else remove(events, "draw")

    verdict = verdict_of(a, Job(edit=edit_b).arm(tmp_path / "b"))
    assert [o.class_ for o in verdict.origins] == ["structure"]
    assert "another place of the step" in verdict.summary
    assert verdict.rank_steps[0].moved == 1


def test_reading_other_things_is_structure_not_computation(tmp_path: Path) -> None:
    # Everything that either run's l1 read is equal in both, but they read different things.
    edit = at(1, 0, amend("l1.out", reads=["batch", "l1.weight", "draw"]))
    [origin] = diverged(tmp_path, edit).origins
    assert (origin.class_, origin.module) == ("structure", "l1")
    assert origin.summary == (
        "output out.0 of module l1 was made from other things: in A it read forward output"
        " l0.out.0, in B it read forward input arg.0"
    )


def test_reading_more_in_one_run_changes_no_class(tmp_path: Path) -> None:
    edit = at(1, 0, amend("l1.out", reads=["l0.out", "l1.weight", "draw", "l0.weight", "batch"]))
    [origin] = diverged(tmp_path, edit).origins
    assert origin.class_ == "computation"
    assert origin.evidence == []


def test_a_carrier_through_its_inputs_is_no_origin(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, at(2, 0, twist("l0.out")))
    row = verdict.rank_steps[0]
    assert (row.mismatched, row.carriers, row.steps_matched) == (14, 13, 2)


def test_a_carrier_through_its_span_is_no_origin(tmp_path: Path) -> None:
    def unlinked(events: list[Ev]) -> None:
        find(events, "back l0").reads = []
        find(events, "back l0").span = "back l1"

    def edit(events: list[Ev]) -> None:
        unlinked(events)
        twist("grad l1")(events)
        twist("back l0", "follows")(events)

    a = Job(edit=at(None, None, unlinked)).arm(tmp_path / "a")

    def edit_b(step: int, rank: int, events: list[Ev]) -> None:
        (edit if step == 1 else unlinked)(events)

    verdict = verdict_of(a, Job(edit=edit_b).arm(tmp_path / "b"))
    assert [o.slot for o in verdict.origins] == ["grad.weight"]


def test_two_independent_origins_on_one_rank(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        twist("master")(events)
        twist("batch")(events)

    verdict = diverged(tmp_path, at(1, 0, edit))
    assert [o.class_ for o in verdict.origins] == ["state", "data"]
    assert "the first of 2 origins" in verdict.summary


def evaluate(events: list[Ev]) -> None:
    new = [
        ev("e.batch", "input", "", "arg.0", phase="eval", value="held out"),
        ev("e.l0", "output", "l0", phase="eval", reads=["e.batch", "l0.weight"]),
        ev("e.out", "output", "", phase="eval", reads=["e.l0"]),
        ev("acc", "metric", "", "accuracy", phase="other", number=0.5),
    ]
    insert(events, "training", *new)


def test_an_evaluation_of_one_run_is_a_note(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step in (1, 3):
            evaluate(events)

    verdict = diverged(tmp_path, edit, ranks=[0, 1])
    assert verdict.verdict == "identical"
    assert verdict.notes == ["only B evaluated the model in steps 1, 3; nothing else differs there"]


def test_an_evaluation_more_is_no_divergence_either(tmp_path: Path) -> None:
    def twice(events: list[Ev]) -> None:
        evaluate(events)
        again = [e for e in events if e.phase == "eval"]
        new = [ev(f"{e.name}2", e.kind, e.module, e.slot, phase="eval", call=1) for e in again]
        insert(events, "training", *new)

    a = Job(edit=at(None, 0, evaluate)).arm(tmp_path / "a")
    b = Job(edit=at(None, 0, twice)).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    assert verdict.verdict == "identical"
    assert verdict.notes == ["evaluations differ in steps 0-3; nothing else differs there"]


def test_an_evaluation_more_in_the_last_step_is_healed(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            twist("training")(events)
        evaluate(events)
        if step == 3:
            insert(events, "training", ev("e2", "input", "", "arg.0", phase="eval", call=1))

    a = Job(edit=at(None, 0, evaluate)).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(edit=edit).arm(tmp_path / "b"))
    assert (verdict.first_step, verdict.effects.healed) == (1, True)


def test_inputs_are_those_that_are_equal(tmp_path: Path) -> None:
    # At rung step the loss reads all before it; python's generator, which differs, is no input.
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        twist("python")(events)
        if step == 2:
            twist("loss")(events)

    [origin] = diverged(tmp_path, edit, level="step").origins
    assert origin.num_inputs == 12
    assert not any("python" in name for name in origin.inputs)


def test_a_difference_inside_an_evaluation_of_both_counts(tmp_path: Path) -> None:
    def fewer(events: list[Ev]) -> None:
        evaluate(events)
        remove(events, "e.l0")

    a = Job(edit=at(None, 0, evaluate)).arm(tmp_path / "a")
    [first, *_] = verdict_of(a, Job(edit=at(None, 0, fewer)).arm(tmp_path / "b")).origins
    assert (first.class_, first.phase, first.step) == ("structure", "eval", 0)
    assert (first.module, first.b) == ("l0", None)


def test_an_evaluation_does_not_hide_what_changed_with_it(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        evaluate(events)
        twist("draw")(events)

    [origin] = diverged(tmp_path, at(1, 0, edit)).origins
    assert origin.class_ == "rng"
    assert "only B evaluated the model in this step" in origin.evidence


def test_a_last_step_that_only_evaluates_more_counts_as_healed(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            twist("master")(events)
        if step == 2:
            find(events, "master").value = "master"
        if step == 3:
            evaluate(events)

    def healed(step: int, rank: int, events: list[Ev]) -> None:
        find(events, "master").kind = "scaler"  # No state is carried on.
        edit(step, rank, events)

    a = Job(edit=at(None, 0, amend("master", kind="scaler"))).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(edit=healed).arm(tmp_path / "b"))
    assert verdict.effects.healed is True


def test_effects_say_what_the_difference_did(tmp_path: Path) -> None:
    effects = diverged(tmp_path, at(1, 0, twist("l0.out"))).effects
    assert (effects.loss, effects.parameters, effects.healed) == (1, 1, False)


def test_effects_are_null_where_there_are_none(tmp_path: Path) -> None:
    effects = diverged(tmp_path, at(1, 0, twist("training"))).effects
    assert (effects.loss, effects.parameters, effects.healed) == (None, None, True)


def test_generators_that_nobody_uses_differ_in_silence(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, at(None, 0, twist("python")))
    assert (verdict.verdict, verdict.notes) == ("identical", [])


def moving_python(seed: str) -> Edit:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        find(events, "python").value = (seed, step)

    return edit


def test_generators_that_are_drawn_from_are_a_note(tmp_path: Path) -> None:
    a = Job(edit=moving_python("one")).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(edit=moving_python("two")).arm(tmp_path / "b"))
    assert verdict.verdict == "identical"
    [note] = verdict.notes
    assert note == (
        "generator python differs from step 0 on (rank 0) and is drawn from, but no recorded"
        " tensor differs"
    )


def test_generators_are_evidence_for_a_batch_that_differs(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        moving_python("two")(step, rank, events)
        if step == 2:
            twist("batch")(events)

    a = Job(edit=moving_python("one")).arm(tmp_path / "a")
    [origin] = verdict_of(a, Job(edit=edit).arm(tmp_path / "b")).origins
    assert origin.evidence == ["generator python differs already at the start of step 2"]


def test_at_rung_step_a_generator_explains_the_loss(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 2:
            twist("torch.cpu")(events)
            twist("loss")(events)

    [origin] = diverged(tmp_path, edit, level="step").origins
    assert origin.class_ == "rng"
    assert "generator torch.cpu" in origin.summary


@pytest.mark.parametrize(("level", "what"), [("layer", "collectives"), ("op", "operators")])
def test_what_led_to_nothing_is_noted(tmp_path: Path, level: str, what: str) -> None:
    def edit(value: int) -> Edit:
        def send(events: list[Ev]) -> None:
            place = {"phase": "other", "op": "c10d.allreduce_", "members": "0"}
            events.append(ev("s", "sent", "", "x", value=value, **place))

        return at(2, 0, send)

    a = Job(edit=edit(1), level=level).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(edit=edit(2), level=level).arm(tmp_path / "b"))
    assert verdict.verdict == "identical"
    assert verdict.notes == [
        f"{what} outside the model differ in step 2, and lead to no other difference"
    ]


def test_a_copy_is_followed_back_to_the_step_that_first_wrote_it_otherwise(tmp_path: Path) -> None:
    """Operators alone know it until the last step, which finds it among the state."""

    def content(weight: float, step: int) -> bytes:
        return hashlib.md5(repr((weight if step else 0, step)).encode()).digest()

    def averaging(weight: float) -> Edit:
        place = {"phase": "other", "op": "aten.lerp_"}

        def edit(step: int, rank: int, events: list[Ev]) -> None:
            if step == 3:
                value = content(weight, step)
                events.insert(0, ev("w", "parameter", "~Net", "w", phase="init", value=value))
                return
            met = ev("met", "input", "", "self", value=content(weight, step), **place)
            told = ev("told", "arguments", "", "weight", value=weight, **place)
            after = {"value": content(weight, step + 1), "reads": ["met", "told"]}
            events += [met, told, ev("new", "written", "", "self", **after, **place)]

        return edit

    a = Job(edit=averaging(0.1), level="op").arm(tmp_path / "a")
    [origin] = verdict_of(a, Job(edit=averaging(0.2), level="op").arm(tmp_path / "b")).origins
    assert (origin.step, origin.class_) == (0, "arguments")


def log(events: list[Ev], name: str, value: float) -> None:
    events.append(ev(name, "metric", "", name, phase="other", value=value, number=value))


def test_metrics_that_differ_are_listed_and_no_divergence(tmp_path: Path) -> None:
    # Throughput differs in every step; that must not hide the norm, which differs in one.
    def logging(seconds: float, norm: float) -> Edit:
        def edit(step: int, rank: int, events: list[Ev]) -> None:
            log(events, "seconds", seconds + step)
            log(events, "norm", norm if step == 2 else 1.0)
            log(events, "lr", 0.1)

        return edit

    a = Job(ranks=[0, 1], edit=logging(0.1, 1.0)).arm(tmp_path / "a")
    verdict = verdict_of(a, Job(ranks=[0, 1], edit=logging(0.2, float("nan"))).arm(tmp_path / "b"))
    assert (verdict.verdict, verdict.exit_code) == ("identical", 0)
    assert [(m.name, m.step, m.rank) for m in verdict.metrics] == [
        ("seconds", 0, 0),
        ("norm", 2, 0),
    ]
    assert verdict.to_dict()["metrics"][1]["b"] == "NaN"


def test_the_loss_is_among_the_metrics(tmp_path: Path) -> None:
    [loss] = diverged(tmp_path, at(1, 1, twist("loss")), ranks=[0, 1]).metrics
    assert (loss.name, loss.step, loss.rank, loss.a, loss.b) == ("loss", 1, 1, 3.5, 4.5)


def test_what_is_equal_of_a_batch_is_evidence(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        beside = [ev(name, "input", "", f"arg.{name}", value=name) for name in ("mask", "ids")]
        insert(events, "l0.out", *beside)

    def other(events: list[Ev]) -> None:
        edit(events)
        twist("ids")(events)

    a = Job(edit=at(None, 0, edit)).arm(tmp_path / "a")
    [origin] = verdict_of(a, Job(edit=at(2, 0, other)).arm(tmp_path / "b"), steps=((2, 3),)).origins
    assert (origin.class_, origin.slot) == ("data", "arg.ids")
    assert origin.evidence == ["equal in this batch: arg.0, arg.mask"]


def test_a_batch_of_another_microbatch_is_found(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            one, other = find(events, "batch"), find(events, "batch#1")
            one.value, other.value = other.value, one.value

    origin = diverged(tmp_path, edit, microbatches=2).origins[0]
    assert origin.class_ == "data"
    assert origin.evidence == ["microbatch 0 of B has the batch of microbatch 1 of A"]


def test_a_batch_of_another_rank_is_found(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            find(events, "batch").value = ("batch", step, 1 - rank, 0)

    origins = diverged(tmp_path, edit, ranks=[0, 1]).origins
    assert [(o.class_, o.evidence) for o in origins] == [
        ("data", [f"rank {rank} of B has the batch of rank {1 - rank} of A"]) for rank in (0, 1)
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_that_ranks_share_in_one_run_alone_is_found(tmp_path: Path, shared: bool) -> None:
    def run(name: str, batches: tuple[str, str]) -> Path:
        def edit(step: int, rank: int, events: list[Ev]) -> None:
            if step == 1:
                find(events, "batch").value = batches[rank]

        return Job(ranks=[0, 1], edit=edit).arm(tmp_path / name)

    # What tensor parallel ranks share in both runs is not worth a word.
    origins = verdict_of(run("a", ("x", "x" if shared else "y")), run("b", ("z", "z"))).origins
    same = ["ranks 0 and 1 of B have the same batch", "ranks 1 and 0 of B have the same batch"]
    assert [o.evidence for o in origins] == ([[], []] if shared else [[text] for text in same])


def test_a_shifted_batch_is_found(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        find(events, "batch").value = ("batch", max(step - 2, 0), rank, 0)

    verdict = diverged(tmp_path, edit, steps=range(6))
    assert (
        verdict.origins[0]
        .evidence[0]
        .startswith("B repeats A's batches shifted by -1 from step 1 on")
    )


def test_runs_of_other_lengths_are_compared_over_what_both_have(tmp_path: Path) -> None:
    a = Job(steps=range(5), ranks=[0, 1]).arm(tmp_path / "a")
    b = Job(steps=[0, 1, 3], ranks=[0, 1]).arm(tmp_path / "b")
    verdict = verdict_of(a, b, steps=((0, 2),))
    assert (verdict.verdict, verdict.notes) == ("identical", [])
    assert verdict.compared is not None and verdict.compared.steps == [0, 1]
    verdict = verdict_of(a, b)
    assert verdict.notes == ["A has steps 0-4, B has steps 0-1, 3: compared over steps 0-1, 3"]


def test_a_rank_without_a_common_step_is_not_counted_as_compared(tmp_path: Path) -> None:
    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    b = Job(ranks=[0, 1]).arm(tmp_path / "b")
    [journal] = (b / "journal" / "rank=00001").iterdir()
    journal.unlink()
    verdict = verdict_of(a, b)
    assert verdict.compared is not None and verdict.compared.ranks == [0]
    assert "1 rank " in verdict.summary
    assert verdict.notes == ["rank 1: A has steps 0-3, B has no step: compared over no step"]


def test_a_killed_run_is_compared_over_its_complete_steps(tmp_path: Path) -> None:
    a = Job().arm(tmp_path / "a")
    b = Job(close=False).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    assert verdict.verdict == "identical"
    assert verdict.notes == ["B's record of rank 0 was cut short: its complete steps are compared"]


def test_runs_without_a_common_step_are_incomparable(tmp_path: Path) -> None:
    a = Job(steps=[0, 1]).arm(tmp_path / "a")
    with pytest.raises(CompareError, match="no complete step in common"):
        verdict_of(a, Job(steps=[5]).arm(tmp_path / "b"))
    with pytest.raises(CompareError, match="no complete step in common"):
        verdict_of(a, Job(steps=[]).arm(tmp_path / "c"))


def test_other_rungs_are_compared_at_the_shallower(tmp_path: Path) -> None:
    a = Job(level="step").arm(tmp_path / "a")
    b = Job(edit=at(2, 0, twist("l0.out"))).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    assert verdict.notes == ["A was recorded at rung step, B at layer: compared at step"]
    assert [place(o) for o in verdict.origins] == [(0, 2, "forward", "", "loss", "loss.0")]
    assert verdict.compared is not None
    assert verdict.compared.events == 4 * 21
    assert verdict.effects.loss == 2 and not verdict.effects.healed
    assert verdict_of(a, Job().arm(tmp_path / "c")).verdict == "identical"


def test_independent_state_stays_apart_when_rungs_differ(tmp_path: Path) -> None:
    def edit(events: list[Ev]) -> None:
        twist("l0.weight")(events)
        twist("lr")(events)

    a = Job(level="step").arm(tmp_path / "a")
    verdict = verdict_of(a, Job(edit=at(1, 0, edit)).arm(tmp_path / "b"))
    assert [o.component for o in verdict.origins] == ["parameter", "param_group option"]


def test_other_windows_of_modules_are_compared_over_what_both_have(tmp_path: Path) -> None:
    def window(step: int, rank: int, events: list[Ev]) -> None:
        if rank == 0:
            remove(events, "l0.out", "back l1")

    settings = {"modules": "l1"}
    a = Job(edit=window, settings=settings).arm(tmp_path / "a")
    b = Job(edit=at(2, 0, twist("l1.out"))).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    assert any("A was recorded for --modules 'l1', B for all modules" in n for n in verdict.notes)


def test_equal_ranks_have_no_event_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpdiff.store.run import RankRecord

    read: list[tuple[int, int]] = []
    events = RankRecord.events

    def noting(self: RankRecord, step: int) -> Any:
        read.append((self.rank, step))
        return events(self, step)

    monkeypatch.setattr(RankRecord, "events", noting)
    diverged(tmp_path, at(3, 1, twist("training")), ranks=range(4))
    # Also in the step before, to say since when the state differs.
    assert read == [(1, 3), (1, 3), (1, 2), (1, 2)]


def test_an_environment_that_differs_is_listed(tmp_path: Path) -> None:
    a = Job().arm(tmp_path / "a")
    b = Job(environment={"decides.threads": 8, "hostname": "there"}).arm(tmp_path / "b")
    verdict = verdict_of(a, b)
    assert verdict.verdict == "identical"
    assert [(d.key, d.a, d.b, d.decides) for d in verdict.environment] == [
        ("threads", 1, 8, True),
        ("hostname", "here", "there", False),
    ]


def test_an_environment_that_differs_explains_a_computation(tmp_path: Path) -> None:
    a = Job().arm(tmp_path / "a")
    environment = {"decides.threads": 8, "decides.torch": "2.12.0"}
    b = Job(edit=at(1, 0, twist("l0.out")), environment=environment).arm(tmp_path / "b")
    [origin] = verdict_of(a, b).origins
    assert origin.class_ == "environment"
    assert "threads, torch" in origin.summary
    assert origin.evidence == ["threads: A 1, B 8", "torch: A 2.13.0, B 2.12.0"]


def test_the_json_has_the_fixed_names_and_types(tmp_path: Path) -> None:
    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    b = Job(
        ranks=[0, 1],
        edit=at(1, 1, twist("l0.out")),
        info={"blind_spots": {"complex tensor": 3}},
        environment={"decides.threads": 2},
    ).arm(tmp_path / "b")
    found = json.loads(json.dumps(verdict_of(a, b).to_dict(), allow_nan=False))
    number, text, list_, null = int, str, list, type(None)
    fixed: dict[str, Any] = {
        "schema": number,
        "verdict": text,
        "compared": {"rung": text, "ranks": list_, "steps": list_, "events": number},
        "first_step": number,
        "origins": [
            {
                "rank": number,
                "step": number,
                "microbatch": number,
                "phase": text,
                "module": text,
                "op": (text, null),
                "occurrence": number,
                "slot": text,
                "seq": number,
                "class": text,
                "inputs": list_,
                "matched_before": number,
                "strength": text,
                "hint": (text, null),
            }
        ],
        "receivers": [{"rank": number, "step": number, "from": list_, "via": text}],
        "metrics": [{"name": text, "step": number, "a": float, "b": float}],
        "environment": [{"key": text, "a": number, "b": number}],
        "blind_spots": list_,
        "next": text,
        "effects": {"loss": (number, null), "parameters": (number, null), "healed": bool},
    }
    hold(found, fixed)
    assert found["schema"] == 1
    assert found["blind_spots"] == [{"reason": "complex tensor", "a": 0, "b": 6}]


def hold(found: Any, fixed: Any) -> None:
    if isinstance(fixed, dict):
        for name, inner in fixed.items():
            hold(found[name], inner)
    elif isinstance(fixed, list):
        assert found
        for entry in found:
            hold(entry, fixed[0])
    else:
        assert isinstance(found, fixed)


def test_progress_is_told(tmp_path: Path) -> None:
    a = Job(ranks=[0, 1]).arm(tmp_path / "a")
    told: list[tuple[int, int]] = []
    verdict_of(a, a, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("level", ["layer", "op"])
@pytest.mark.parametrize("begin", [0, 2])
def test_weights_that_change_between_steps_were_not_initialised_otherwise(
    tmp_path: Path, level: str, begin: int
) -> None:
    averaged = ev("averaged", "sent", "", "tensors.0", phase="other", op="c10d.allreduce_.default")
    averaged.members = "0,1"

    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 2:
            find(events, "l0.weight").twist = "averaged"
            events.insert(0, averaged)

    a = Job(level=level, steps=range(begin, 4)).arm(tmp_path / "a")
    b = Job(level=level, steps=range(begin, 4), edit=edit).arm(tmp_path / "b")
    [origin] = (o for o in verdict_of(a, b).origins if o.kind == "parameter")
    assert origin.hint is not None and ("an average" in origin.hint) is (begin == 0)
    told = "of the collectives outside the model the first to differ, in one run only"
    assert any(told in text for text in origin.evidence) is (begin == 0 and level == "layer")


def test_state_that_changed_between_steps_says_which_step_still_compared_equal(
    tmp_path: Path,
) -> None:
    [later] = diverged(tmp_path / "later", at(1, 0, twist("scale"))).origins
    assert later.evidence == [
        "step 0 compared equal: this changed after it, or in it by something that was not recorded"
    ]
    [first] = diverged(tmp_path / "first", at(0, 0, twist("scale"))).origins
    assert first.evidence == []


def test_state_that_the_step_before_does_not_hold_may_differ_for_longer(tmp_path: Path) -> None:
    def edit_of(change: Callable[[list[Ev]], object]) -> Edit:
        def edit(step: int, rank: int, events: list[Ev]) -> None:
            if step == 0:
                events.remove(find(events, "scale"))
            elif step == 1:
                change(events)

        return edit

    changes = {"a": lambda events: None, "b": twist("scale")}
    arms = [Job(edit=edit_of(how)).arm(tmp_path / name) for name, how in changes.items()]
    [later] = verdict_of(*arms).origins
    assert later.evidence == [
        "step 0 compared equal, but does not hold this: it may differ for longer"
    ]


def cut(events: list[Ev]) -> None:
    del events[len(events) // 2 :]


def test_a_step_in_which_a_rank_died_is_compared_up_to_there(tmp_path: Path) -> None:
    whole = Job().arm(tmp_path / "a")
    for name, a, b in (("B", whole, tmp_path / "b"), ("A", tmp_path / "c", whole)):
        dead = a if name == "A" else b
        Job(edit=at(3, 0, cut), close=False).arm(dead)
        verdict = verdict_of(a, b)
        assert verdict.verdict == "identical"
        assert f"{name}'s record ends within step 3: compared up to there" in verdict.notes
        assert (verdict.effects.loss, verdict.effects.parameters) == (None, None)


def test_a_difference_before_a_rank_died_is_found(tmp_path: Path) -> None:
    whole = Job().arm(tmp_path / "a")

    def change(events: list[Ev]) -> None:
        twist("l0.out")(events)
        cut(events)

    verdict = verdict_of(whole, Job(edit=at(3, 0, change), close=False).arm(tmp_path / "b"))
    [origin] = verdict.origins
    assert (origin.step, origin.module, origin.class_) == (3, "l0", "computation")
    assert origin.strength.startswith("B's record ends within the step; ")


def test_a_step_that_the_program_ended_is_not_forgiven_what_it_lacks(tmp_path: Path) -> None:
    whole = Job().arm(tmp_path / "a")
    verdict = verdict_of(whole, Job(edit=at(3, 0, cut)).arm(tmp_path / "b"))
    assert (verdict.verdict, verdict.first_step) == ("diverged", 3)
    assert verdict.origins[0].class_ == "structure"
