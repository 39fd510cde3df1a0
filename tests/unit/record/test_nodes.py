"""Where nodes come from, when two threads count theirs alike."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fpdiff.fingerprint.record.modules.nodes import Nodes
from fpdiff.fingerprint.record.modules.scopes import Scope

InThread = Callable[..., Any]


@pytest.fixture
def threads() -> Iterator[tuple[InThread, InThread]]:
    """Yield two ways to call a function, each in a new thread, which counts nodes from nought."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        yield (
            lambda body, *args, **kwargs: one.submit(body, *args, **kwargs).result(),
            lambda body, *args, **kwargs: other.submit(body, *args, **kwargs).result(),
        )


def node(nodes: Nodes, line: str | None, *, by_pass: bool = False) -> Any:
    """Create a node in this thread, with the line that is told of it."""
    made = torch.ones(1, requires_grad=True).exp().grad_fn
    assert nodes.is_new()
    nodes.note_line(line, by_pass=by_pass)
    assert not nodes.is_new()
    return made


def begin_pass(nodes: Nodes) -> None:
    nodes.of_pass = nodes.here()


def test_a_recomputation_elsewhere_is_no_part_of_a_pass(threads: tuple[InThread, InThread]) -> None:
    program, device = threads
    nodes = Nodes()
    program(begin_pass, nodes)
    own = program(node, nodes, "own.py:1")
    recomputed = device(node, nodes, "recomputed.py:2")
    assert own._sequence_nr() == recomputed._sequence_nr()
    assert nodes.line_of(own) == "own.py:1"
    device(begin_pass, nodes)  # In the backward of a checkpoint.
    assert nodes.line_of(recomputed) == "recomputed.py:2"


def test_of_two_nodes_that_a_pass_may_run_no_line_is_told(
    threads: tuple[InThread, InThread],
) -> None:
    program, device = threads
    nodes = Nodes()
    program(begin_pass, nodes)
    own = program(node, nodes, "own.py:1")
    graph_of_pass = [device(node, nodes, f"double.py:{n}", by_pass=True) for n in (2, 3)]
    assert nodes.line_of(own) is None
    assert nodes.line_of(graph_of_pass[0]) is None
    assert nodes.line_of(graph_of_pass[1]) == "double.py:3"


def test_lines_are_kept_for_a_step_and_the_next(threads: tuple[InThread, InThread]) -> None:
    program, _ = threads
    nodes = Nodes()
    program(begin_pass, nodes)
    own = program(node, nodes, "own.py:1")
    nodes.next_step()
    assert nodes.line_of(own) == "own.py:1"
    nodes.next_step()
    assert nodes.line_of(own) is None


def test_each_thread_has_module_calls_of_its_own(threads: tuple[InThread, InThread]) -> None:
    program, device = threads
    nodes = Nodes()
    program(begin_pass, nodes)
    scopes = [Scope(name, "", 0, "forward", 0, None, True, False) for name in "abc"]
    for scope in scopes[:2]:
        program(nodes.mark, scope)
        made = program(node, nodes, "own.py:1")
    device(nodes.mark, scopes[2])
    recomputed = device(node, nodes, "recomputed.py:2")
    program(nodes.mark, None)
    assert nodes.scope_of(made) is scopes[1]
    device(begin_pass, nodes)
    assert nodes.scope_of(recomputed) is scopes[2]
