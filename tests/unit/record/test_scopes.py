import threading

from torch import nn

from fpdiff.fingerprint.record.modules.scopes import Scope, ScopeStack


def scope(path: str) -> Scope:
    return Scope(
        path=path,
        module_class="",
        call=0,
        phase="forward",
        microbatch=0,
        parent=None,
        recorded=True,
        only_passes=False,
    )


def test_calls_end_innermost_first() -> None:
    stack, (a, b) = ScopeStack(), (nn.ReLU(), nn.ReLU())
    outer, inner = scope("a"), scope("b")
    stack.enter(a, outer)
    stack.enter(b, inner)
    assert stack.top() is inner and len(stack) == 2 and stack.top_module() is b
    assert stack.leave(b) is inner and stack.leave(a) is outer
    assert stack.top() is None and stack.top_module() is None


def test_leaving_an_outer_call_ends_those_that_an_exception_cut_short() -> None:
    stack, (a, b, c) = ScopeStack(), (nn.ReLU(), nn.ReLU(), nn.ReLU())
    for module in (a, b, c):
        stack.enter(module, scope(""))
    stack.leave(a)
    assert len(stack) == 0 and stack.leave(b) is None


def test_a_module_that_calls_itself_leaves_its_inner_call_first() -> None:
    stack, module = ScopeStack(), nn.ReLU()
    outer, inner = scope("outer"), scope("inner")
    stack.enter(module, outer)
    stack.enter(module, inner)
    assert stack.leave(module) is inner and stack.leave(module) is outer


def test_a_call_that_was_not_entered_leaves_the_others_alone() -> None:
    stack, module = ScopeStack(), nn.ReLU()
    stack.enter(module, scope(""))
    assert stack.leave(nn.ReLU()) is None and len(stack) == 1


def test_each_thread_has_its_own() -> None:
    stack, module = ScopeStack(), nn.ReLU()
    stack.enter(module, scope(""))
    seen = []
    thread = threading.Thread(target=lambda: seen.append((len(stack), stack.top())))
    thread.start()
    thread.join()
    assert seen == [(0, None)]
