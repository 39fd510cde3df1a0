"""Origins that one cause may have made are one group, and a second cause is another."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Ev, Job, at, diverged, ev, find, insert, remove, twist, verdict_of

from fpdiff.fingerprint.bisect import attribute
from fpdiff.fingerprint.bisect.alike import MAX_NAMES, _sort, grouped, names_of, patterns
from fpdiff.fingerprint.bisect.verdict import Verdict

SITE: dict[str, Any] = {
    "phase": "init",
    "kind": "parameter",
    "module": "blocks.0.mlp",
    "module_class": "Linear",
    "call": 0,
    "op": None,
    "occurrence": 0,
    "slot": "weight",
    "members": None,
    "source": None,
}


def twisted(*names: str) -> Any:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            for name in names:
                twist(name)(events)

    return edit


def told(verdict: Verdict) -> list[tuple[int, int, str]]:
    return [
        (group.count, group.of, verdict.origins[group.origins[0]].summary)
        for group in verdict.groups
    ]


def test_origins_that_differ_in_the_parameter_are_one_group(tmp_path: Path) -> None:
    weights = [f"l{n}.weight" for n in range(5)]
    verdict = diverged(tmp_path, twisted(*weights, "lr"), layers=5)
    assert told(verdict) == [
        (5, 5, "parameter l0.weight differs"),
        (1, 1, "param_group option optimizer0.group0.lr differs"),
    ]
    first, second = verdict.groups
    assert (first.members, first.origins) == (weights, [0, 1, 2, 3, 4])
    assert (second.members, second.origins) == (["optimizer0.group0.lr"], [5])
    assert verdict.summary.endswith("(state; the first of 6 origins in 2 groups)")
    assert verdict.to_dict()["groups"][0]["count"] == 5


def test_one_cause_of_many_is_told_as_part_of_them(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, twisted("l1.exp_avg", "l3.exp_avg"), layers=5)
    assert told(verdict) == [(2, 5, "optimizer state l1.weight.exp_avg differs")]
    assert "in 1 group)" in verdict.summary


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("l0.weight", "l0.exp_avg"),
        ("l1.weight'", "l1.exp_avg'"),
        ("norm.mean", "master"),
        ("l1.exp_avg", "l0.exp_avg'"),
    ],
)
def test_other_kinds_and_phases_are_other_groups(tmp_path: Path, one: str, other: str) -> None:
    assert [count for count, _, _ in told(diverged(tmp_path, twisted(one, other)))] == [1, 1]


def test_each_rank_has_groups_of_its_own(tmp_path: Path) -> None:
    verdict = diverged(tmp_path, twisted("l0.weight", "l1.weight"), ranks=[0, 1])
    assert [(g.rank, g.count, g.origins) for g in verdict.groups] == [
        (0, 2, [0, 1]),
        (1, 2, [2, 3]),
    ]
    assert "the first of 4 origins in 2 groups" in verdict.summary


def test_what_only_one_run_has_is_no_group_with_what_differs(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            twist("l0.exp_avg")(events)
            remove(events, "l2.exp_avg", "l2.exp_avg'")
            for name, dtype in (("l4", "bfloat16"), ("l5", "float16"), ("l6", "float16")):
                find(events, f"{name}.exp_avg").dtype = dtype

    found = told(diverged(tmp_path, edit, layers=8))
    assert [(count, of) for count, of, _ in found] == [(1, 8), (1, 8), (1, 8), (2, 8)]


def test_blocks_that_one_run_alone_has_are_alike_if_they_are_as_long(tmp_path: Path) -> None:
    def edit(step: int, rank: int, events: list[Ev]) -> None:
        if step == 1:
            for name, length in (("l0", 2), ("l2", 2), ("l4", 3)):
                more = [ev(f"{name}.{n}", "mark", name, f"m{n}") for n in range(length)]
                insert(events, f"{name}.out", *more)

    found = diverged(tmp_path, edit, layers=6)
    assert [(group.count, found.origins[group.origins[0]].count) for group in found.groups] == [
        (2, 2),
        (1, 3),
    ]


def flags(events: list[Ev], *values: bool) -> None:
    new = [
        ev(f"flag{n}", "training_flag", f"l{n}", "training", phase="init", value=v, shape=())
        for n, v in enumerate(values)
    ]
    remove(events, "training")
    insert(events, "lr", *new)


def flagged(tmp_path: Path, a: tuple[bool, ...], b: tuple[bool, ...], edit: Any = None) -> Verdict:
    arms = []
    for name, values in (("a", a), ("b", b)):

        def change(step: int, rank: int, events: list[Ev], own: Any = (name, values)) -> None:
            flags(events, *own[1])
            if edit is not None:
                edit(own[0], events)

        arms.append(Job(steps=[0], layers=len(a), edit=change).arm(tmp_path / name))
    return verdict_of(*arms)


def test_flags_of_all_modules_are_one_call_of_eval(tmp_path: Path) -> None:
    verdict = flagged(tmp_path, (True,) * 4, (False,) * 4)
    assert told(verdict) == [(4, 4, "training flag l0.training differs")]
    assert "whole model" in (verdict.groups[0].hint or "")
    assert verdict.groups[0].patterns == {"l0": 1, "l1": 1, "l2": 1, "l3": 1}


def test_flags_that_went_the_other_way_have_another_cause(tmp_path: Path) -> None:
    verdict = flagged(tmp_path, (True, False, True, True), (False, True, False, True))
    assert [(count, of) for count, of, _ in told(verdict)] == [(2, 4), (1, 4)]
    assert [group.members for group in verdict.groups] == [["l0", "l2"], ["l1"]]
    assert [group.hint for group in verdict.groups] == [None, None]


@pytest.mark.parametrize("level", ["layer", "op"])
def test_what_a_module_draws_and_does_follows_from_its_flag(tmp_path: Path, level: str) -> None:
    """Both in one run only; a second cause in a module whose flag is equal is told beside it."""
    op = {"op": "aten.bernoulli_.float"} if level == "op" else {}

    def edit(name: str, events: list[Ev]) -> None:
        draws = [
            ev(f"drawn{n}", "generator", f"l{n}", "torch.cpu", value=n, shape=(), **op)
            for n in (0, 3)
        ]
        insert(events, "l0.out", *(draws if name == "a" else ()))
        told = ev("args", "arguments", "l0", "p", value=name, op="aten.dropout.default", shape=())
        insert(events, "l0.out", *([told] if level == "op" else ()))

    flag = flagged(tmp_path / "flag", (True, True, True, True), (False, True, True, True), edit)
    assert [(o.kind, o.module) for o in flag.origins] == [
        ("training_flag", "l0"),
        ("generator", "l3"),
    ]
    alike = flagged(tmp_path / "alike", (True,) * 4, (True,) * 4, edit)
    assert "training_flag" not in {o.kind for o in alike.origins}
    assert "l0" in {o.module for o in alike.origins}


def test_what_an_evaluation_did_does_not_follow_from_the_flag_of_the_training(
    tmp_path: Path,
) -> None:
    def edit(name: str, events: list[Ev]) -> None:
        told = ev("args", "arguments", "l0", "p", phase="eval", value=name, op="aten.add.Tensor")
        insert(events, "flag0", told)

    verdict = flagged(tmp_path, (True, True), (False, True), edit)
    assert {(o.kind, o.phase) for o in verdict.origins} == {
        ("arguments", "eval"),
        ("training_flag", "init"),
    }


def test_of_too_many_origins_the_first_of_each_group_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"l{n}.weight" for n in range(8)]
    edit = twisted(*names, "lr", "scale")
    whole = diverged(tmp_path / "whole", edit, layers=8)
    monkeypatch.setattr(attribute, "MAX_ORIGINS", 4)
    cut = diverged(tmp_path / "cut", edit, layers=8)
    assert cut.num_origins == whole.num_origins == 10
    assert [o.summary.split()[-2] for o in cut.origins] == [
        *("l0.weight", "l1.weight"),
        *("optimizer0.group0.lr", "scaler0.scale"),
    ]
    assert cut.origins[0] == whole.origins[0]
    assert [(g.count, g.origins) for g in cut.groups] == [(8, [0, 1]), (1, [2]), (1, [3])]
    monkeypatch.setattr(attribute, "MAX_ORIGINS", 2)
    least = diverged(tmp_path / "least", edit, layers=8)
    assert [(g.count, g.origins) for g in least.groups] == [(8, [0]), (1, [1])]
    assert "group" not in least.summary


def test_other_weights_from_the_first_step_on_have_a_hint_of_their_own(tmp_path: Path) -> None:
    weights = [f"l{n}.weight" for n in range(6)]
    first = diverged(
        tmp_path / "first", at(0, 0, lambda e: [twist(w)(e) for w in weights]), layers=6
    )
    assert "the seed" in (first.groups[0].hint or "")
    later = diverged(tmp_path / "later", twisted(*weights), layers=6)
    window = {"settings": {"steps": [[0, 4]]}}
    part = diverged(
        tmp_path / "part", at(0, 0, lambda e: [twist(w)(e) for w in weights]), layers=6, info=window
    )
    few = diverged(
        tmp_path / "few", at(0, 0, lambda e: [twist(w)(e) for w in weights[:2]]), layers=6
    )
    assert [found.groups[0].hint for found in (later, part, few)] == [None] * 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"slot": "weight"}, {"slot": "bias", "module": "", "module_class": ""}),
        ({"kind": "master", "slot": "optimizer0.group0.3"}, {"slot": "optimizer0.group1.0"}),
        ({"kind": "optimizer_state", "slot": "weight.exp_avg"}, {"slot": "bias.exp_avg"}),
        ({"kind": "optimizer_state", "slot": "w.mu"}, {"slot": "optimizer1.group0.2.mu"}),
        ({"kind": "option", "slot": "optimizer0.group0.lr"}, {"slot": "optimizer0.group9.lr"}),
        ({"kind": "local_gradient", "slot": "grad.weight"}, {"slot": "grad.bias"}),
        ({"kind": "gradient", "slot": "grad.mlp.out.0"}, {"slot": "grad.out.out.0"}),
        ({"kind": "input", "slot": "ln1.arg.0"}, {"slot": "ln2.arg.0"}),
        ({"kind": "training_flag"}, {"module_class": "Net"}),
        ({"op": "aten.mm.default", "kind": "result"}, {"module_class": "Net", "occurrence": 3}),
        ({"kind": "output", "call": 1}, {"call": 2, "module": "a"}),
        ({"kind": "buffer", "slot": "mean"}, {"slot": "var"}),
        ({"op": "aten.var_mean", "kind": "result", "slot": "out.0"}, {"slot": "out.1"}),
        ({"op": "aten._foreach_add_", "kind": "written", "slot": "self.0"}, {"slot": "self.7"}),
    ],
)
def test_what_differs_in_place_alone_is_of_a_sort(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert _sort(SITE | one) == _sort(SITE | one | other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"phase": "optimizer"}),
        ({}, {"module": "~Net.blocks.0"}),
        ({"kind": "optimizer_state", "slot": "weight.exp_avg"}, {"slot": "weight.exp_avg_sq"}),
        ({"kind": "option", "slot": "optimizer0.group0.lr"}, {"slot": "optimizer0.group0.eps"}),
        ({"kind": "option", "slot": "optimizer0.group0.lr"}, {"slot": "optimizer1.group0.lr"}),
        ({"kind": "gradient", "slot": "grad.mlp.out.0"}, {"slot": "grad.mlp.out.1"}),
        ({"kind": "output"}, {"module_class": "GELU"}),
        ({"op": "aten.mm.default", "kind": "result"}, {"op": "aten.add.Tensor"}),
        ({"op": "aten.add.Tensor", "kind": "arguments", "slot": "alpha"}, {"slot": "other"}),
        ({"op": "c10d.x", "kind": "received", "members": "0,1"}, {"members": "0,2"}),
    ],
)
def test_what_differs_in_more_is_not(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert _sort(SITE | one) != _sort(SITE | one | other)


def test_groups_keep_the_order() -> None:
    assert grouped("abacb") == [[0, 2], [1, 4], [3]]
    assert grouped("") == []


def test_names() -> None:
    def named(**changes: Any) -> str:
        (name,) = names_of([SITE | changes])
        return name

    assert named() == "blocks.0.mlp.weight"
    assert named(kind="reduced_gradient", slot="grad.bias", module="") == "bias"
    assert named(kind="training_flag", slot="training", module="") == "the root module"
    op = {"op": "aten.lerp_.Scalar", "kind": "arguments"}
    assert named(**op, module="", source="train.py:9") == "train.py:9"
    assert named(**op, source="train.py:9") == "blocks.0.mlp"


def test_what_one_call_made_is_told_apart_by_its_slots() -> None:
    call = SITE | {"op": "aten.native_layer_norm_backward.default", "kind": "result"}
    made = [call | {"slot": "out.1"}, call | {"slot": "out.2"}]
    assert names_of(made) == ["out.1", "out.2"]
    assert names_of([*made, made[0] | {"module": "norm"}]) == [*["blocks.0.mlp"] * 2, "norm"]


def test_patterns() -> None:
    assert patterns([]) == {}
    names = [f"blocks.{n}.mlp.{m}.w" for n in range(3) for m in (0, 2)]
    assert patterns(["out.w", *names, "out.w"]) == {"out.w": 2, "blocks.*.mlp.*.w": 6}
    assert patterns(names[:2]) == {"blocks.0.mlp.*.w": 2}
    assert patterns(["o0.group1.lr", "o0.group12.lr"]) == {"o0.group*.lr": 2}
    assert patterns(["conv1.w", "conv2.w", "train.py:3"]) == {
        "conv1.w": 1,
        "conv2.w": 1,
        "train.py:3": 1,
    }
    assert len(patterns(f"a{n}.w" for n in range(99))) == MAX_NAMES
