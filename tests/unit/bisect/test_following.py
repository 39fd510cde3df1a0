"""What follows from another difference though nothing that it read says so."""

from pathlib import Path

import pytest
from synthetic_runs import Ev, ev, verdict_of, write_steps

from fpdiff.fingerprint.bisect.verdict import Origin

DRAW, OTHER = "aten.bernoulli_.float", "aten.rand.default"


def origins(path: Path, a: list[Ev], b: list[Ev]) -> list[Origin]:
    runs = [write_steps(path / name, [own], level="op") for name, own in (("a", a), ("b", b))]
    return verdict_of(*runs).origins


def draws(size: int, *, second_state: str, chance: float = 0.5) -> list[Ev]:
    """Return two draws from one generator, of which the first fills so many elements."""
    first = [
        ev("state", "generator", "one", "torch.cpu", op=DRAW, dtype="", shape=()),
        ev("told", "arguments", "one", "p", op=DRAW, value=chance, dtype="", shape=()),
        ev("filled", "written", "one", "self", op=DRAW, reads=["state", "told"], shape=(size,)),
    ]
    reads = ["state"]
    return [
        *first,
        ev("next", "generator", "two", "torch.cpu", op=OTHER, reads=reads, value=second_state),
        ev("made", "result", "two", op=OTHER, reads=["next"]),
    ]


def test_a_draw_after_one_of_another_size_follows_from_it(tmp_path: Path) -> None:
    [origin] = origins(tmp_path, draws(4, second_state="x"), draws(6, second_state="y"))
    assert (origin.class_, origin.module) == ("metadata", "one")


def test_a_draw_after_an_equal_one_does_not(tmp_path: Path) -> None:
    [origin] = origins(tmp_path, draws(4, second_state="x"), draws(4, second_state="y"))
    assert (origin.class_, origin.module) == ("rng", "two")


def calls(*, more: bool, reads_it: bool) -> list[Ev]:
    """Return a step in which one run makes two calls more, the second perhaps of the first's."""
    same = [ev(f"same{n}", "result", "m", op="aten.mul.Tensor", slot=f"out.{n}") for n in (0, 1)]
    if not more:
        return same
    found = []
    for number, op in enumerate(("aten.sum.dim_IntList", "aten.pow.Tensor_Scalar")):
        told = ev(f"told{number}", "arguments", "m", "dim", op=op, dtype="", shape=())
        reads = [f"told{number}", *(["result0"] if number and reads_it else [])]
        found.append([told, ev(f"result{number}", "result", "m", op=op, reads=reads)])
    return [*found[0], same[0], *found[1], same[1]]


@pytest.mark.parametrize("reads_it", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_arguments_of_a_call_follow_from_what_it_computes_with(
    tmp_path: Path, reads_it: bool, swapped: bool
) -> None:
    runs = calls(more=False, reads_it=reads_it), calls(more=True, reads_it=reads_it)
    found = origins(tmp_path, *(runs[::-1] if swapped else runs))
    ops = ["aten.sum.dim_IntList", "aten.pow.Tensor_Scalar"]
    assert [o.op for o in found] == (ops[:1] if reads_it else ops)
    assert {o.kind for o in found} == {"arguments"}
