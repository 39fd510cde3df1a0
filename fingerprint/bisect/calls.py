"""Which calls of operators are the same ones, where one run makes others or in another order.

The nth call of an operator in a module, or outside of all, is the nth one only as long as both runs
make the same calls: a metric that one run logs, a checkpoint that it writes, shifts all that come
after it. There, calls are paired as lines of two texts are: first those that are equal to the last
bit, then, between these, those of equal dtypes and shapes, then those of the same operator. Of what
is left, equal calls pair, and then those of equal dtypes and shapes: they have moved.

Where the gradient of a parameter is accumulated, the order of the calls is not the program's: the
reducer of DistributedDataParallel goes through parameters that a step did not use in the order of
their addresses. Calls that differ there pair with those that are equal to the last bit. So do those
of an optimizer, which goes through its parameters in the order in which it was given them.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from difflib import SequenceMatcher
from itertools import chain
from typing import Any

import numpy as np

from fpdiff.fingerprint.bisect.arm import Arm, Flags, Ints, Site, is_at_parameter

_MAX_PAIRS = 1 << 22
"""Of longer sequences (product of their lengths) the nth call pairs with the nth."""

Levels = tuple[list[Any], list[Any], list[Any]]
"""What each call is compared by, hashable: to the bit, by description, by operator."""


def pair_calls(a: Arm, b: Arm, pair: Ints) -> Ints:
    """Return the pairs of events, paired anew where the arms make other calls.

    Args:
        a: one arm.
        b: the other.
        pair: for each of A's events the index of B's, or -1; by the numbers of the calls.
    """
    groups_a, groups_b = _groups(a), _groups(b)
    result: Ints = pair.copy()
    for group in groups_a.keys() & groups_b.keys():
        calls_a, calls_b = groups_a[group], groups_b[group]
        if [*calls_a] == [*calls_b]:
            continue
        events_a, events_b = list(calls_a.values()), list(calls_b.values())
        if len(events_a) * len(events_b) > _MAX_PAIRS:
            continue
        for events in events_a:
            result[events] = -1
        for i, j in _matching(_tokens(a, events_a), _tokens(b, events_b)):
            _pair_events(a, b, events_a[i], events_b[j], result)
        _pair_first_sights(a, b, list(chain(*events_a)), list(chain(*events_b)), result)
    return result


def pair_at_parameters(a: Arm, b: Arm, pair: Ints) -> Ints:
    """Return the pairs of events, paired anew where gradients are accumulated in another order.

    Args:
        a: one arm.
        b: the other.
        pair: for each of A's events the index of B's, or -1.
    """
    at_a, at_b = (arm.sites.having(_is_in_any_order)[arm.site] for arm in (a, b))
    rows = np.flatnonzero(at_a & (pair >= 0))
    equal = a.description[rows] == b.description[pair[rows]]
    if (equal & (a.digest[rows] == b.digest[pair[rows]]).all(axis=1)).all():
        return pair
    result: Ints = pair.copy()
    groups_a, groups_b = _groups(a, at_a), _groups(b, at_b)
    for group in groups_a.keys() & groups_b.keys():
        calls_a, calls_b = groups_a[group], groups_b[group]
        if calls_a.keys() != calls_b.keys():
            continue  # `pair_calls` has seen to them.
        events_a, events_b = list(calls_a.values()), [calls_b[call] for call in calls_a]
        exact_a, *levels_a = _tokens(a, events_a)
        exact_b, *levels_b = _tokens(b, events_b)
        differing = [
            n
            for n, tokens in enumerate(zip(exact_a, exact_b, strict=True))
            if tokens[0] != tokens[1]
        ]
        left_a, left_b = dict.fromkeys(differing), dict.fromkeys(differing)
        for tokens in zip((exact_a, *levels_a), (exact_b, *levels_b), strict=True):
            for i, j in _anywhere(*tokens, left_a, left_b):
                _pair_events(a, b, events_a[i], events_b[j], result)
    return result


def _is_in_any_order(site: Site) -> bool:
    """Return whether a site is of a call whose place among others is no property of the program."""
    is_of_optimizer = site["op"] is not None and site["phase"] == "optimizer"
    return is_of_optimizer or is_at_parameter(site)


def _groups(arm: Arm, among: Flags | None = None) -> dict[tuple[int, int], dict[int, list[int]]]:
    """Return the events of each call, in order of the calls, by microbatch and scope."""
    groups: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
    scopes, calls = arm.sites.scope[arm.site], arm.sites.call[arm.site]
    for index in np.flatnonzero(scopes >= 0 if among is None else among).tolist():
        group = groups[int(arm.microbatch[index]), int(scopes[index])]
        group.setdefault(int(calls[index]), []).append(index)
    return groups


def _tokens(arm: Arm, calls: list[list[int]]) -> Levels:
    """Return what calls are compared by."""
    made = ~arm.sites.having(_is_first_sight)[arm.site]
    parts, digests = arm.sites.part[arm.site], arm.digest
    exact: list[Any] = []
    described: list[Any] = []
    operators: list[Any] = []
    for events in calls:
        operator = arm.sites.operator[arm.site[events[0]]]
        # What comes out of a collective is recorded when it is read, in any order.
        shown = sorted((i for i in events if made[i]), key=lambda i: int(parts[i]))
        token = (operator, *((parts[i], arm.description[i]) for i in shown))
        operators.append(operator)
        described.append(token)
        exact.append((token, *(tuple(digests[i].tolist()) for i in shown)))
    return exact, described, operators


def _is_first_sight(site: Site) -> bool:
    """Return whether an event is of what a call read, which another call may have read first."""
    return bool(site["kind"] in ("input", "uninitialised", "rewrite"))


def _matching(a: Levels, b: Levels) -> Iterator[tuple[int, int]]:
    """Yield the pairs of calls that keep their order, then those of calls that moved."""
    left_a, left_b = dict.fromkeys(range(len(a[0]))), dict.fromkeys(range(len(b[0])))
    # Ties are broken from the left text's side: it must not be the one that was named first.
    swapped = _rank(a) > _rank(b)
    texts = list(zip(b, a, strict=True) if swapped else zip(a, b, strict=True))
    for pair in _in_order(texts, (0, len(texts[0][0])), (0, len(texts[0][1]))):
        i, j = reversed(pair) if swapped else pair
        del left_a[i], left_b[j]
        yield i, j
    for tokens_a, tokens_b in zip(a[:2], b[:2], strict=True):
        yield from _anywhere(tokens_a, tokens_b, left_a, left_b)


def _anywhere(
    tokens_a: list[Any], tokens_b: list[Any], left_a: dict[int, None], left_b: dict[int, None]
) -> Iterator[tuple[int, int]]:
    """Pair equal tokens among those that are left, wherever they are, and take them out."""
    waiting: dict[Hashable, deque[int]] = defaultdict(deque)
    for j in left_b:
        waiting[tokens_b[j]].append(j)
    for i in [*left_a]:
        if waiting[tokens_a[i]]:
            j = waiting[tokens_a[i]].popleft()
            del left_a[i], left_b[j]
            yield i, j


def _rank(levels: Levels) -> tuple[int, list[list[int]]]:
    """Return what orders two texts by themselves: their lengths and digests."""
    exact = levels[0]
    return len(exact), [[*chain(*digests)] for _, *digests in exact]


def _in_order(
    texts: list[tuple[list[Any], list[Any]]], a: tuple[int, int], b: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Match stretches of both sequences, and what lies between matches by the next level."""
    if not texts or a[0] == a[1] or b[0] == b[1]:
        return
    tokens_a, tokens_b = texts[0]
    matcher = SequenceMatcher(None, tokens_a[slice(*a)], tokens_b[slice(*b)], autojunk=False)
    done_a, done_b = a[0], b[0]
    for block in matcher.get_matching_blocks():  # The last one is empty, at the end of both.
        start_a, start_b = a[0] + block.a, b[0] + block.b
        yield from _in_order(texts[1:], (done_a, start_a), (done_b, start_b))
        yield from ((start_a + n, start_b + n) for n in range(block.size))
        done_a, done_b = start_a + block.size, start_b + block.size


def _pair_events(a: Arm, b: Arm, events_a: list[int], events_b: list[int], pair: Ints) -> None:
    """Pair the events of two calls that are one, by kind and slot."""
    waiting: dict[int, deque[int]] = defaultdict(deque)
    for j in events_b:
        waiting[int(b.sites.part[b.site[j]])].append(j)
    for i in events_a:
        same = waiting[int(a.sites.part[a.site[i]])]
        if same:
            pair[i] = same.popleft()


def _pair_first_sights(
    a: Arm, b: Arm, events_a: list[int], events_b: list[int], pair: Ints
) -> None:
    """Pair equal tensors that one call was the first to read in A, and another one in B."""
    taken = set(pair[events_a].tolist())
    waiting: dict[Hashable, deque[int]] = defaultdict(deque)
    for j in events_b:
        if j not in taken and _is_first_sight(b.site_of(j)):
            waiting[_content(b, j)].append(j)
    for i in events_a:
        if pair[i] < 0 and _is_first_sight(a.site_of(i)) and waiting[_content(a, i)]:
            pair[i] = waiting[_content(a, i)].popleft()


def _content(arm: Arm, index: int) -> Hashable:
    return arm.site_of(index)["kind"], *arm.content_of(index)
