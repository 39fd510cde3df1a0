import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded import hide_the_past
from torch import nn
from torch.optim.swa_utils import AveragedModel

from fpdiff.fingerprint.record.modules.names import Names
from fpdiff.fingerprint.record.state.discovery import Discovery


@pytest.fixture(autouse=True)
def _only_this_test() -> None:
    hide_the_past()


def in_use(discovery: Discovery, since: int = 0) -> list[torch.optim.Optimizer]:
    return [optimizer for _, optimizer in discovery.optimizers(since)]


def look(*roots: nn.Module) -> tuple[Discovery, Names]:
    discovery, names = Discovery(), Names()
    for root in roots:
        names.adopt(root)
    discovery.look(names)
    return discovery, names


def test_optimizers_are_found_in_the_order_of_what_they_train() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    second = torch.optim.SGD(model[1].parameters(), lr=1)
    first = torch.optim.Adam(model[0].parameters())
    discovery, _ = look(model)
    assert in_use(discovery) == [first, second]


def test_a_shown_optimizer_is_added_once() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    discovery = Discovery()
    discovery.note_step(optimizer, 0)
    discovery.note_step(optimizer, 1)
    discovery.look(Names())
    assert in_use(discovery, 1) == [optimizer]


def test_an_optimizer_that_rests_is_not_in_use_and_keeps_its_number() -> None:
    first, second = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1) for _ in range(2))
    discovery = Discovery()
    discovery.note_step(first, 0)
    discovery.note_step(second, 0)
    discovery.note_step(second, 1)
    assert discovery.optimizers(0) == [(0, first), (1, second)]
    assert discovery.optimizers(1) == [(1, second)]
    discovery.note_step(first, 2)
    assert discovery.optimizers(1) == [(0, first), (1, second)]


def test_copies_are_named_alike_in_whatever_order_the_collector_knows_them() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    makers: list[Callable[[], nn.Module]] = [
        lambda: copy.deepcopy(model),
        lambda: AveragedModel(model),
        lambda: nn.ModuleDict({"teacher": copy.deepcopy(model)}),
    ]
    labels = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        copies = []
        for index in order:
            copies.append(makers[index]())
            gc.collect()
        _, names = look(model)
        labels.append([names.path(root, "") for root in names.roots()])
        del copies
        gc.collect()
    assert labels[0] == labels[1] == labels[2] and len(labels[0]) == 4


def test_what_is_found_is_not_kept_alive() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    scaler = torch.amp.GradScaler("cpu")
    discovery, names = look(model)
    assert in_use(discovery) and discovery.scalers() == [scaler]
    del model, optimizer, scaler
    gc.collect()
    assert (in_use(discovery), discovery.scalers(), names.roots()) == ([], [], [])


def test_a_scaler_that_is_switched_off_does_not_count() -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    discovery, _ = look()
    assert not scaler.is_enabled() and discovery.scalers() == []


def test_looks_become_rare() -> None:
    discovery, names = Discovery(), Names()
    found_at = []
    optimizers = []
    for number in range(1, 12):
        optimizers.append(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1))
        before = len(in_use(discovery))
        discovery.look(names)
        if len(in_use(discovery)) > before:
            found_at.append(number)
    assert found_at == [1, 2, 10]


def test_models_made_later_are_looked_for_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery, names = look()
    looked = 0

    def look_now(names: Names) -> None:
        nonlocal looked
        looked += 1

    def looks(steps: int, *, made: bool) -> int:
        before = looked
        for _ in range(steps):
            if made:
                discovery.note_parameter(nn.Linear(1, 1), "weight", None)
            discovery.look(names)
        return looked - before

    monkeypatch.setattr(discovery, "look_now", look_now)
    assert looks(1, made=False) == 1  # The second of all.
    assert [looks(1, made=made) for made in (True, False, True, False)] == [1, 0, 1, 0]
    assert looks(90, made=True) == 9  # One of them is the tenth of all, which is due.


def test_the_collector_runs_only_where_a_look_shows_something_new() -> None:
    model = nn.Linear(1, 1)
    discovery, names = look(model)
    unreachable: list[Any] = [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1)]
    unreachable.append(unreachable)
    gone = weakref.ref(unreachable[0])
    del unreachable
    gc.disable()
    try:
        discovery.look(names)
        assert gone() is None and in_use(discovery) == []
        collections = sum(generation["collections"] for generation in gc.get_stats())
        for _ in range(8):
            discovery.look(names)
        assert sum(generation["collections"] for generation in gc.get_stats()) == collections
    finally:
        gc.enable()


class Forwards(torch.optim.Optimizer):
    """A wrapper as accelerate's: an optimizer by class, with nothing of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]  # As accelerate's.
        return self.inner.param_groups


def test_a_wrapper_of_an_optimizer_is_not_a_second_one() -> None:
    model = nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1)
    wrapper = Forwards(inner)
    discovery, _ = look(model)
    assert in_use(discovery) == [inner] and wrapper.param_groups


class Touchy:
    """Says what it is only by running code."""

    touched = 0

    @property  # type: ignore[misc]  # That is the point.
    def __class__(self) -> Any:
        Touchy.touched += 1
        return torch.optim.Optimizer

    def __getattr__(self, name: str) -> Any:
        Touchy.touched += 1
        raise AttributeError(name)


def test_looking_runs_no_code_of_the_objects() -> None:
    objects = [Touchy() for _ in range(3)]
    Touchy.touched = 0
    look(nn.Linear(1, 1))
    assert Touchy.touched == 0 and len(objects) == 3


def test_a_copy_of_a_root_is_named_once_from_its_outermost() -> None:
    class Model(nn.Sequential):
        pass

    root, copy = Model(nn.Linear(1, 1)), nn.ModuleDict({"inner": Model(nn.Linear(1, 1))})
    _, names = look(root)
    assert names.roots() == [root, copy]
    assert names.path(copy["inner"], "") == "~ModuleDict.inner"


def test_what_shares_a_part_with_a_root_is_no_copy() -> None:
    class Model(nn.Sequential):
        pass

    root = Model(nn.Linear(1, 1))
    holder = nn.ModuleList([root, Model(nn.Linear(1, 1))])
    _, names = look(root)
    assert names.roots() == [root] and len(holder) == 2


def test_a_root_without_parameters_has_no_copies() -> None:
    losses = [nn.MSELoss(), nn.MSELoss()]
    _, names = look(losses[0])
    assert names.roots() == losses[:1]


def test_what_an_optimizer_trains_is_the_main_root_if_none_is_known() -> None:
    encoder, model = nn.Linear(1, 1).requires_grad_(False), nn.Sequential(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    _, names = look(encoder)
    assert names.path(model, "?") == "" and names.path(encoder, "?") == "~Linear"
    assert optimizer.param_groups


def test_a_trainable_twin_of_a_frozen_root_is_left_for_its_first_call() -> None:
    class Model(nn.Sequential):
        pass

    teacher, student = Model(nn.Linear(1, 1)).requires_grad_(False), Model(nn.Linear(1, 1))
    _, names = look(teacher)
    assert names.roots() == [teacher]
    names.adopt(student)
    assert names.path(student, "?") == ""
