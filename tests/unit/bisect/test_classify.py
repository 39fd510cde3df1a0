"""A class and a sentence for each kind of event."""

from typing import Any

import pytest

from fpdiff.fingerprint.bisect.classify import Facts, Reduction, classify, moved
from fpdiff.fingerprint.bisect.verdict import CLASSES, EnvironmentDifference
from fpdiff.store.schema import KINDS, PHASES


def site(**changes: Any) -> dict[str, Any]:
    row = {"phase": "forward", "kind": "output", "module": "l0", "slot": "out.0", "op": None}
    return row | changes


def differing(*keys: str) -> list[EnvironmentDifference]:
    return [EnvironmentDifference(key=k, a=1, b=2, ranks=[0], decides=True) for k in keys]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_kind_has_a_class_and_a_sentence(kind: str, phase: str) -> None:
    row = site(kind=kind, phase=phase)
    for facts in (
        Facts(),
        Facts(in_b=False, same_description=False),
        Facts(same_description=False),
        Facts(num_inputs=0),
        Facts(environment=differing("threads")),
        Facts(other_inputs={"A": "x", "B": "y"}),
    ):
        found = classify(row, facts)
        assert found.class_ in CLASSES
        assert (found.class_ == "state") == (found.component is not None)
        assert "  " not in found.what and not found.what.endswith((" ", ",", "."))


@pytest.mark.parametrize(
    ("row", "facts", "sentence"),
    [
        (site(), Facts(in_a=False), "output out.0 of module l0 exists only in B, not in A"),
        (site(), Facts(), "output out.0 of module l0 differs although all it read is equal"),
        (
            site(module="", kind="loss", slot="loss.0"),
            Facts(num_inputs=0),
            "the loss differs; what it was made from is not recorded",
        ),
        (
            site(),
            Facts(environment=differing("a", "b", "c", "d")),
            (
                "output out.0 of module l0 differs although all it read is equal; the environment"
                " is not: a, b, c and 1 more"
            ),
        ),
        (
            site(kind="arguments", slot="dim,index", op="aten.select.int", members=None),
            Facts(in_a=False),
            ("arguments of aten.select in module l0 (dim,index) exist only in B, not in A"),
        ),
        (
            site(kind="input", slot="arg.0", phase="recompute"),
            Facts(in_a=False),
            "what the recomputation of module l0 was given (arg.0) exists only in B, not in A",
        ),
        (
            site(module="", kind="input", slot="arg.ids"),
            Facts(),
            "the batch (arg.ids of the root module) differs",
        ),
        (
            site(module="", kind="input", slot="arg.ids"),
            Facts(same_description=False),
            "the batch (arg.ids of the root module) has another dtype or shape",
        ),
        (
            site(phase="init", kind="parameter", slot="weight"),
            Facts(same_description=False),
            "parameter l0.weight differs in dtype or shape",
        ),
        (
            site(phase="optimizer", kind="optimizer_state", slot="weight.exp_avg"),
            Facts(),
            (
                "optimizer state l0.weight.exp_avg after the optimizer's step differs although all"
                " it read is equal"
            ),
        ),
        (
            site(kind="generator", slot="torch"),
            Facts(),
            "module l0 drew from a generator in another state",
        ),
        (
            site(kind="mark", module="", slot="logits"),
            Facts(other_inputs={"A": "x", "B": "y"}),
            "the tensor marked logits was made from other things: in A it read x, in B it read y",
        ),
        (
            site(kind="local_gradient", slot="grad.weight", phase="backward"),
            Facts(),
            (
                "this rank's own gradient of l0.weight differs although all it read is equal, but"
                " for what .grad held before, which is not recorded"
            ),
        ),
        (
            site(kind="reduced_gradient", slot="grad.weight", phase="optimizer"),
            Facts(reduction=Reduction(num_ranks=9, local_is_known=True)),
            (
                "the gradient of l0.weight, as the optimizer got it, differs: each of the 9 ranks"
                " gave an equal gradient to the reduction"
            ),
        ),
    ],
)
def test_sentences(row: dict[str, Any], facts: Facts, sentence: str) -> None:
    assert classify(row, facts).what == sentence


@pytest.mark.parametrize(("exact", "class_"), [(False, "computation"), (True, "unseen-producer")])
def test_what_was_sent_is_no_kernels_doing(exact: bool, class_: str) -> None:
    row = site(op="c10d.allreduce_.default", kind="sent", slot="tensors.0", members="0,1")
    assert classify(row, Facts(exact=exact)).class_ == class_


def test_moved() -> None:
    assert moved(site(), 1).what == (
        "output out.0 of module l0 comes at another place of the step in B than in A"
    )
    assert "(and 2 more) comes" in moved(site(), 3).what
