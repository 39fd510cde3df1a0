from pathlib import Path

import pytest
import torch
from recorded import hide_the_past, mlp, recorded, train

import fpdiff

X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hide_the_past()
    return tmp_path / "r"


def test_when_nothing_records_they_do_nothing() -> None:
    tensor = torch.ones(3)
    fpdiff.step(3)
    fpdiff.step(1)
    fpdiff.log("loss", tensor)
    fpdiff.mark("x", tensor)
    assert tensor._version == 0


# step


def test_a_step_begins_where_the_script_says(run: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(run) as events:
        for step in (10, 20):
            fpdiff.step(step)
            train(model, steps=2, optimizer=optimizer)  # Two optimizer steps to one of these.
    assert sorted({e.step for e in events}) == [10, 20]
    assert len(events.pick(step=10, kind="loss")) == 2


def test_after_the_first_call_only_calls_begin_steps(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=2)
        fpdiff.step(5)
        train(model, steps=2)
    assert sorted({e.step for e in events}) == [0, 1, 5]


def test_a_step_that_an_optimizer_has_ended_is_not_begun_again(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        train(model, steps=2)
        with pytest.warns(UserWarning, match=r"step\(1\) after step 1 is ignored: numbers must"):
            fpdiff.step(1)
        train(model, steps=1)
    assert sorted({e.step for e in events}) == [0, 1, 2]


def test_what_is_no_number_is_ignored_and_what_counts_as_one_is_taken(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        with pytest.warns(UserWarning, match=r"step\('three'\) is ignored: not an integer"):
            fpdiff.step("three")  # type: ignore[arg-type]
        fpdiff.step(torch.tensor(4))  # type: ignore[arg-type]
        model(X)
        fpdiff.mark("early", X)
        fpdiff.step(5)
        fpdiff.mark("before the module", X)
        model(X)
    assert {e.step for e in events} == {4, 5}
    assert [(e.step, e.slot) for e in events.pick(kind="mark")] == [
        (4, "early"),
        (5, "before the module"),
    ]


def test_numbers_must_grow(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        fpdiff.step(3)
        model(X)
        fpdiff.step(3)
        with pytest.warns(UserWarning, match=r"step\(2\) after step 3 is ignored") as caught:
            fpdiff.step(2)
        model(X)
    assert {e.step for e in events} == {3}
    assert caught[0].filename == __file__


def test_a_script_may_begin_below_the_first_step(run: Path) -> None:
    with recorded(run, first_step=7) as events:
        fpdiff.step(0)
        mlp()(X)
    assert {e.step for e in events} == {0}


def test_steps_that_the_script_names_are_what_the_window_is_of(run: Path) -> None:
    model = mlp()
    with recorded(run, steps="20:30") as events:
        for step in (10, 20, 30):
            fpdiff.step(step)
            train(model, steps=1)
    assert {e.step for e in events} == {20}


# log


def test_a_metric_is_a_number_of_the_step_that_has_ended(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        for step in range(2):
            train(model, steps=1)
            fpdiff.log("norm", 1.5 + step)
            fpdiff.log("loss", torch.tensor([0.5]))
    found = events.pick(kind="metric")
    assert found.names("step", "phase", "slot", "value") == [
        (0, "other", "norm", 1.5),
        (0, "other", "loss", 0.5),
        (1, "other", "norm", 2.5),
        (1, "other", "loss", 0.5),
    ]
    assert found[1].digest == found[3].digest != found[0].digest


def test_the_same_metric_twice_in_a_step_is_two_occurrences(run: Path) -> None:
    with recorded(run) as events:
        mlp()(X)
        fpdiff.log("x", 1)
        fpdiff.log("x", True)
        fpdiff.log("x", float("nan"))
    found = events.pick(kind="metric")
    assert [e.occurrence for e in found] == [0, 1, 2]
    assert found[0].digest == found[1].digest and found[2].value != found[2].value


@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(1j), torch.eye(1).to_sparse()])
def test_what_is_not_one_number_is_not_logged(run: Path, value: torch.Tensor) -> None:
    with recorded(run) as events:
        mlp()(X)
        with pytest.warns(UserWarning, match=r"log\('x'\) is ignored: not a single real number"):
            fpdiff.log("x", value)
        mlp()(X)
    assert events.pick(kind="metric") == []


def test_a_value_that_is_no_number_stops_nothing(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        model(X)
        with pytest.warns(UserWarning, match=r"log\('x'\) is ignored: not a single real number"):
            fpdiff.log("x", "high")  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match=r"mark\('y'\) is ignored: not a tensor"):
            fpdiff.mark("y", 1.5)  # type: ignore[arg-type]
        model(X)
    assert len(events.pick(kind="output", module="")) == 2


def test_before_the_first_module_there_is_nothing_to_belong_to(run: Path) -> None:
    with recorded(run) as events:
        fpdiff.log("early", 1)
        fpdiff.mark("early", X)
        mlp()(X)
    assert events.pick(slot="early") == []


def test_outside_the_window_nothing_is_logged(run: Path) -> None:
    model = mlp()
    with recorded(run, steps="1") as events:
        for _ in range(3):
            train(model, steps=1)
            fpdiff.log("x", 1)
            fpdiff.mark("y", X)
    assert {e.step for e in events} == {1}
    assert len(events.pick(kind="metric")) == len(events.pick(kind="mark")) == 1


# mark


def test_a_mark_reads_what_made_the_tensor(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        out = model(X)
        fpdiff.mark("out", out)
        fpdiff.mark("sum", out.sum())
    made = events.one(kind="output", module="")
    out_mark, sum_mark = events.pick(kind="mark")
    assert out_mark.reads == {made.seq} and out_mark.digest == made.digest
    assert made.seq in sum_mark.reads and sum_mark.where[:3] == ("other", "mark", "")


def test_a_mark_keeps_and_changes_nothing(run: Path) -> None:
    import weakref

    tensor = torch.rand(3, 4).t()
    before = tensor.clone()
    with recorded(run):
        mlp()(X)
        fpdiff.mark("x", tensor)
        alive = weakref.ref(tensor)
        assert torch.equal(tensor, before) and tensor.stride() == (1, 4)
        del tensor
        assert alive() is None


def test_what_a_module_is_given_after_a_mark_reads_the_mark(run: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            fpdiff.mark("y", y)
            return self.inner(y)  # type: ignore[no-any-return]

    with recorded(run) as events:
        Model()(X)
    mark = events.one(kind="mark")
    assert mark.seq in events.one(kind="output", module="inner").reads
    assert events.one(slot="arg.0").seq in mark.reads


def test_a_name_may_be_anything_and_a_number_too_large(run: Path) -> None:
    model = mlp()
    with recorded(run) as events:
        model(X)
        fpdiff.log(5, 1.0)  # type: ignore[arg-type]
        fpdiff.mark(None, X)  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match=r"log\('huge'\) is ignored: not a single real"):
            fpdiff.log("huge", 10**400)
    assert [e.slot for e in events if e.kind in ("metric", "mark")] == ["5", "None"]
