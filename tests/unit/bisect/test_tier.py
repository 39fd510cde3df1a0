"""Step rows: what differs in which step, without reading events."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Edit, Ev, Job, at, ev, insert, twist

from fpdiff.fingerprint.bisect.lens import Lens
from fpdiff.fingerprint.bisect.tier import RankTier
from fpdiff.store.run import Run

CLEAR = Lens(None, ())
FULL = Lens("layer", ())  # Hides nothing, but is compared event by event.


def tier(tmp_path: Path, edit: Edit, *, lens: Lens = CLEAR, **options: Any) -> RankTier:
    a, b = (Run.open(Job(edit=e).arm(tmp_path / n)) for n, e in (("a", None), ("b", edit)))
    return RankTier(a.ranks[0], b.ranks[0], lens=lens, steps=options.get("steps", ()))


@pytest.mark.parametrize("lens", [CLEAR, FULL])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("l0.out", {"any", "loss", "parameters", "backward"}),
        ("loss", {"any", "loss", "parameters", "backward"}),
        ("grad l0", {"any", "parameters", "backward"}),
        ("l0.weight'", {"any", "parameters"}),
        ("training", {"any"}),
        ("python", {"generator"}),
    ],
)
def test_what_differs(tmp_path: Path, name: str, expected: set[str], lens: Lens) -> None:
    found = tier(tmp_path, at(2, 0, twist(name)), lens=lens)
    difference = found.differences[2]
    names = ("any", "loss", "parameters", "metrics", "generator", "backward", "evaluation")
    assert {name for name in names if getattr(difference, name)} == expected
    assert found.steps.tolist() == [0, 1, 2, 3]
    assert (found.num_steps_before(2), found.num_events_before(2)) == (2, 54)
    assert found.num_events == 108 and found.num_events_of(2) == 27
    assert set(found.differences) == ({2, 3} if "parameters" in expected else {2})
    assert found.first_with("metrics") is None


def logged(events: list[Ev]) -> None:
    events.append(ev("m", "metric", "", "norm", phase="other"))


@pytest.mark.parametrize("lens", [CLEAR, FULL])
def test_logged_numbers_are_apart(tmp_path: Path, lens: Lens) -> None:
    [(step, difference)] = tier(tmp_path, at(1, 0, logged), lens=lens).differences.items()
    assert (step, difference.any, difference.metrics) == (1, False, True)


@pytest.mark.parametrize("lens", [CLEAR, FULL])
def test_an_evaluation_in_one_run(tmp_path: Path, lens: Lens) -> None:
    def evaluate(events: list[Ev]) -> None:
        insert(events, "training", ev("e", "input", "", "arg.0", phase="eval"))

    found = tier(tmp_path, at(3, 0, evaluate), lens=lens)
    assert (found.differences[3].any, found.differences[3].evaluation) == (False, "B")
    assert not found.differs_at_end()


def test_a_window_of_steps(tmp_path: Path) -> None:
    found = tier(tmp_path, at(1, 0, twist("training")), steps=((0, 1), (2, 9)))
    assert found.steps.tolist() == [0, 2, 3] and not found.differences and found.is_windowed
    assert [steps.tolist() for steps in found.all_steps] == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_what_is_let_go_is_read_again(tmp_path: Path) -> None:
    found = tier(tmp_path, at(1, 0, twist("training")))
    first = found.aligned(1)
    assert found.aligned(1) is first
    found.is_held = True
    found.release()
    assert found.aligned(1) is first
    found.is_held = False
    found.release()
    again = found.aligned(1)
    assert again is not first and (again.equal == first.equal).all()
    assert found.generators_that_differ(1) == []
    assert found.generators_drawn_from() == {"torch.cpu"}
