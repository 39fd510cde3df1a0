import gc

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fpdiff.fingerprint.record.modules.names import Names


def named(root: nn.Module) -> tuple[Names, dict[str, nn.Module]]:
    names = Names()
    names.adopt(root)
    return names, dict(names.modules(root))


def test_the_first_trainable_root_is_the_empty_path() -> None:
    names, modules = named(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())))
    assert list(modules) == ["", "0", "1", "1.0"]
    assert all(names.path(module, "elsewhere") == path for path, module in modules.items())


def test_other_roots_are_named_after_their_class() -> None:
    names = Names()
    roots = [nn.ReLU(), nn.Linear(1, 1), nn.MSELoss(), nn.Linear(1, 1), nn.ReLU(), nn.ReLU()]
    assert all(names.adopt(root) for root in roots)
    paths = [names.path(root, "") for root in roots]
    assert paths == ["~ReLU", "", "~MSELoss", "~Linear", "~ReLU.2", "~ReLU.3"]


def test_the_root_takes_over_from_a_part_that_was_called_before_it() -> None:
    part, other = nn.Linear(1, 1), nn.Linear(1, 1)
    names, _ = named(part)
    whole = nn.Sequential(nn.ReLU(), nn.Sequential(part))
    assert not names.take_over(other) and not names.take_over(part)
    assert names.take_over(whole)
    assert names.roots() == [whole] and names.root_of(part) is whole
    assert list(dict(names.modules(whole))) == ["", "0", "1", "1.0"]
    assert not names.adopt(whole) and not names.take_over(whole)


def test_a_wrapper_takes_nothing_over() -> None:
    part = nn.Linear(1, 1)
    names, _ = named(part)
    assert not names.take_over(checkpoint_wrapper(part))
    assert names.take_over(checkpoint_wrapper(nn.Sequential(part)))
    assert names.path(part, "") == "0"


def test_a_frozen_root_is_not_the_main_one() -> None:
    names = Names()
    teacher, student = nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)
    names.adopt(teacher)
    names.adopt(student)
    assert (names.path(teacher, ""), names.path(student, "")) == ("~Linear", "")


def test_a_copy_is_never_the_main_one() -> None:
    names = Names()
    copy = nn.Linear(1, 1)
    names.adopt(copy, is_copy=True)
    assert names.path(copy, "") == "~Linear"


def test_children_of_other_roots_are_below_them() -> None:
    names = Names()
    root = nn.Sequential(nn.ReLU())
    names.adopt(root)
    assert names.path(root[0], "") == "~Sequential.0"


def test_a_root_is_adopted_once() -> None:
    names = Names()
    root = nn.Sequential(nn.Linear(1, 1))
    assert names.adopt(root) and not names.adopt(root) and not names.adopt(root[0])
    assert names.roots() == [root]


def test_a_shared_module_has_the_first_of_its_names() -> None:
    shared = nn.Linear(2, 2)
    root = nn.ModuleDict({"b": nn.Sequential(shared), "a": shared})
    _, modules = named(root)
    assert list(modules) == ["", "b", "b.0"]
    assert [path for path, _ in root.named_modules()] == list(modules)


def test_a_module_that_holds_itself_ends() -> None:
    root = nn.Sequential(nn.Linear(1, 1))
    root.add_module("again", root)
    _, modules = named(root)
    assert list(modules) == ["", "0"]


def test_data_parallel_adds_nothing_to_a_path() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    wrapper = nn.DataParallel(model)
    names, modules = named(wrapper)
    assert list(modules) == ["", "0"] and modules[""] is model
    assert names.is_wrapper(wrapper) and not names.is_wrapper(model)
    assert not names.adopt(wrapper)


def test_a_checkpoint_wrapper_adds_nothing_to_a_path() -> None:
    inner = nn.Sequential(nn.Linear(1, 1))
    wrapper = checkpoint_wrapper(inner)
    names, modules = named(nn.Sequential(wrapper))
    assert list(modules) == ["", "0", "0.0"] and modules["0"] is inner
    assert names.is_wrapper(wrapper)


def test_wrappers_of_wrappers_add_nothing_either() -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(1, 1)))
    _, modules = named(nn.DataParallel(nn.DataParallel(model)))
    assert list(modules) == ["", "0"]


def test_what_compile_returns_stands_for_what_it_wraps() -> None:
    inner = nn.Linear(1, 1)
    compiled = torch.compile(inner, backend="eager")
    assert isinstance(compiled, nn.Module)
    names, _ = named(nn.Sequential(compiled))
    assert names.path(compiled, "") == names.path(inner, "") == "0"
    assert not names.is_wrapper(compiled)


def test_a_module_added_later_is_found() -> None:
    names, _ = named(root := nn.Sequential(nn.Linear(1, 1)))
    late = nn.Linear(1, 1)
    root.add_module("late", nn.Sequential(late))
    assert names.path(late, "wherever") == "late.0"


def test_a_module_made_on_the_fly_is_named_below_its_caller() -> None:
    names, _ = named(nn.Linear(1, 1))
    assert names.path(nn.ReLU(), "block") == "block.~ReLU"
    assert names.path(nn.ReLU(), "") == "~ReLU"


def test_roots_are_not_kept_alive() -> None:
    names, root = Names(), nn.Linear(1, 1)
    names.adopt(root)
    del root
    gc.collect()
    assert names.roots() == []


@pytest.mark.parametrize("name", ["module", "_orig"])
def test_an_ordinary_child_called_like_a_wrappers_is_a_child(name: str) -> None:
    root = nn.Module()
    root.add_module(name, nn.Linear(1, 1))
    _, modules = named(root)
    assert list(modules) == ["", name]
