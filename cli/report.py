"""A verdict as a person would want to read it: the answer first, then how it was narrowed."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fpdiff.cli.console import print_data, printable
from fpdiff.fingerprint.bisect.verdict import (
    EnvironmentDifference,
    Origin,
    OriginGroup,
    RankStep,
    Verdict,
)
from fpdiff.fingerprint.bisect.wording import counted, ranks_text

MAX_GROUPS = 5
MAX_INPUTS = 4
MAX_PATTERNS = 6
MAX_RANKS = 8
MAX_ENVIRONMENT = 12
_STYLE = {"identical": "bold green", "diverged": "bold red", "incomparable": "bold yellow"}


def render(verdict: Verdict, console: Console) -> None:
    """Print a verdict."""
    content: list[RenderableType] = [_headline(verdict)]
    content.append(_rows([*_overview(verdict), *_metrics(verdict)]))
    if verdict.verdict == "diverged":
        content += ["", *_narrowing(verdict), "", _rows(_effects(verdict))]
    rest = [*_environment(verdict), *_blind_spots(verdict), *_notes(verdict)]
    if rest:
        content += ["", _rows(rest)]
    print_data(console, *content)
    if verdict.next:
        print_data(
            console, "", "To narrow it further, record A and B again; this is the command for B:"
        )
        # The command is one line however long it is, so that it can be copied.
        console.print(Text("  ") + printable(verdict.next), soft_wrap=True)


def _headline(verdict: Verdict) -> Text:
    head = Text(verdict.verdict, style=_STYLE[verdict.verdict])
    return head + Text(": ") + printable(verdict.summary.removeprefix("identical: "))


def _overview(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    yield "A", verdict.a
    yield "B", verdict.b
    compared = verdict.compared
    if compared is not None and verdict.verdict == "diverged":
        first, last = compared.steps
        steps = f"step {first}" if first == last else f"steps {first}-{last}"
        events = counted(compared.events, "event")
        text = f"{events}, {ranks_text(compared.ranks)}, {steps}, rung {compared.rung}"
        yield "compared", text


def _narrowing(verdict: Verdict) -> Iterable[RenderableType]:
    """Yield the ranks, those with the earliest origins first."""
    first: dict[int, int] = {}
    for order, origin in enumerate(verdict.origins):
        first.setdefault(origin.rank, order)
    received = {receiver.rank for receiver in verdict.receivers}
    ranks = sorted(verdict.rank_steps, key=lambda r: first.get(r.rank, len(verdict.origins)))
    for rank in ranks[:MAX_RANKS]:
        yield _rows([(f"rank {rank.rank}", _rank_line(rank))])
        for receiver in verdict.receivers:
            if receiver.rank == rank.rank:
                sender = f" from {ranks_text(receiver.from_)}" if receiver.from_ else ""
                text = f"received it{sender} through {receiver.via}"
                yield _rows([("", text)])
        groups = [group for group in verdict.groups if group.rank == rank.rank]
        before = None
        for group in groups[:MAX_GROUPS]:
            origin = verdict.origins[group.origins[0]]
            yield Padding(_origin(origin, group, before), (0, 0, 0, 2))
            before = origin
        if rest := groups[MAX_GROUPS:]:
            more = counted(sum(group.count for group in rest), "more origin")
            kinds = f" in {counted(len(rest), 'group')}" if len(rest) > 1 else ""
            yield _rows([("", f"and {more}{kinds} on this rank: see --json")])
        if rank.mismatched > rank.carriers and not groups and rank.rank not in received:
            yield _rows([("", "its origins are not listed: there are too many")])
    if len(ranks) > MAX_RANKS:
        yield _rows([("", f"and {counted(len(ranks) - MAX_RANKS, 'more rank')}: see --json")])


def _rank_line(rank: RankStep) -> str:
    before = f"{counted(rank.steps_matched, 'equal step')}, then " if rank.steps_matched else ""
    extra = [
        f"{count:,} {what}"
        for what, count in (
            ("only in A", rank.only_a),
            ("only in B", rank.only_b),
            ("moved", rank.moved),
            ("carriers", rank.carriers),
        )
        if count
    ]
    more = f" ({', '.join(extra)})" if extra else ""
    return (
        f"{before}step {rank.step} differs in {rank.mismatched:,} of {rank.events:,} events{more}"
    )


def _origin(origin: Origin, group: OriginGroup, before: Origin | None) -> RenderableType:
    """Lay out the first origin of a group, and name the others.

    Advice that the one before it gave already is not given again.
    """
    module = f"module {origin.module}" if origin.module else "the root module"
    where = f"{origin.phase}, {module}"
    if origin.module_class:
        where += f" ({origin.module_class}"
        where += f", call {origin.call})" if origin.call else ")"
    if origin.microbatch:
        where += f", microbatch {origin.microbatch}"
    rows: list[tuple[str, Any]] = [
        ("origin", _bold(where)),
        ("", origin.summary),
    ]
    if origin.count > 1:
        rows.append(("", f"and {counted(origin.count - 1, 'event')} right after it likewise"))
    if group.count > 1:
        rows.append(("", _likewise(group, origin)))
    if origin.source:
        rows.append(("line", origin.source))
    rows.append(("class", _class_of(origin)))
    rows += [(name, _side(side)) for name, side in (("A", origin.a), ("B", origin.b))]
    if origin.num_inputs:
        equal = "equal" if origin.num_inputs == 1 else "all equal"
        rows.append(("inputs", f"{origin.num_inputs:,}, {equal}: {_inputs(origin)}"))
    if origin.reaches:
        rows.append(("reaches", _way(origin.reaches)))
    matched = counted(origin.matched_before, "event")
    rows.append(("before", f"{matched} of this rank matched"))
    rows += [("evidence", line) for line in origin.evidence]
    if before is None or before.strength != origin.strength:
        rows.append(("rests on", origin.strength))
    hint = group.hint or origin.hint
    if hint and (before is None or before.hint != hint):
        rows.append(("look at", hint))
    return _rows(rows)


def _likewise(group: OriginGroup, first: Origin) -> str:
    """Name the origins of a group: by their patterns, the number of each behind it."""
    text = f"{group.count:,} of {group.of:,} likewise"
    if [*group.patterns] == [first.source]:
        return text  # All on one line of the program, which is told below.
    shown = list(group.patterns.items())[:MAX_PATTERNS]
    names = [f"{name} ({count:,})" if count > 1 else name for name, count in shown]
    rest = group.count - sum(count for _, count in shown)
    more = f" and {rest:,} more" if rest else ""
    return f"{text}: {', '.join(names)}{more}"


def _way(reaches: list[str]) -> str:
    """Say what an origin led to, and through how many events."""
    target, *between = reaches
    if len(between) < 2:
        return target
    return f"{target}, through {counted(len(between) - 1, 'event')}, the last {between[0]}"


def _bold(value: str) -> Text:
    text = printable(value)
    text.stylize("bold")
    return text


def _class_of(origin: Origin) -> str:
    return f"{origin.class_}, {origin.component}" if origin.component else origin.class_


def _side(side: dict[str, Any] | None) -> str:
    if side is None:
        return "has no such event"
    extra = [f"{name} {side[name]:.9g}" for name in ("value", "l2", "absmax") if name in side]
    if "nonfinite" in side:
        extra.append(f"nonfinite {side['nonfinite']}")
    kind = f"{side['dtype']}{side['shape']}" if side["dtype"] else ""
    return "  ".join([side["digest"][:18], kind, *extra]).rstrip()


def _inputs(origin: Origin) -> str:
    names = origin.inputs[:MAX_INPUTS]
    rest = origin.num_inputs - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _effects(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    effects = verdict.effects
    for name, step in (("the loss", effects.loss), ("the parameters", effects.parameters)):
        verb = "differs" if name == "the loss" else "differ"
        first = f"{verb} first in step {step}" if step is not None else f"never {verb}"
        yield "effects", f"{name} {first}"
    if verdict.compared is not None:
        last = verdict.compared.steps[1]
        if last == verdict.first_step:
            yield "effects", f"no step after {last} was compared"
        else:
            end = "is equal again on every rank" if effects.healed else "still differs"
            yield "effects", f"the last step, {last}, {end}"
    if (found := verdict.counted) is not None:
        steps = counted(found.steps, "step")
        text = f"{found.differing:,} of {found.events:,} events differ, in {steps} over all ranks"
        yield "counted", text


def _metrics(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    for metric in verdict.metrics:
        sides = f"A {_number(metric.a)}, B {_number(metric.b)}"
        apart = ""
        if metric.a is not None and metric.b is not None:
            apart = f" ({metric.b - metric.a:+.2g})"
        where = f"first in step {metric.step}, rank {metric.rank}"
        yield "numbers", f"{metric.name}: {sides}{apart}, {where}"


def _environment(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    deciding = [d for d in verdict.environment if d.decides]
    others = [d for d in verdict.environment if not d.decides]
    if verdict.verdict == "diverged" and not deciding:
        yield "environment", "nothing that can change a kernel's result differs"
    num_ranks = len(verdict.compared.ranks) if verdict.compared is not None else 0
    by_key: dict[str, list[EnvironmentDifference]] = {}
    for difference in deciding + (others if verdict.verdict == "diverged" else []):
        by_key.setdefault(difference.key, []).append(difference)
    for first, *rest in list(by_key.values())[:MAX_ENVIRONMENT]:
        text = f"{first.key}: A {_short(first.a)}, B {_short(first.b)}{_when(first)}"
        rest = [difference for difference in rest if difference.ranks != first.ranks]
        if len(first.ranks) != num_ranks:
            text += f" ({ranks_text(first.ranks)})"
        if rest:
            more = sum(len(difference.ranks) for difference in rest)
            text += f"; other values on {counted(more, 'more rank')}"
        yield "environment", text
    if len(by_key) > MAX_ENVIRONMENT:
        more_keys = counted(len(by_key) - MAX_ENVIRONMENT, "more difference")
        yield "environment", f"and {more_keys}: see --json"


def _when(difference: EnvironmentDifference) -> str:
    """Say where an entry that a program switched differs."""
    since, until = difference.since, difference.until
    if since is not None and since == until:
        steps = f"in step {since}"
    elif since is not None and until is not None:
        steps = f"in steps {since}-{until}"
    elif until is not None:
        steps = f"up to step {until}"
    else:
        steps = "" if since is None else f"from step {since} on"
    phases = f"in the {' and '.join(difference.phases)}" if difference.phases else ""
    told = ", ".join(filter(None, (steps, phases)))
    return f", {told}" if told else ""


def _blind_spots(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    label = "not seen"
    for spot in verdict.blind_spots:
        yield label, f"{spot['reason']} ({spot['a']} in A, {spot['b']} in B)"


def _notes(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    for note in verdict.notes:
        yield "note", note


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else repr(value)


def _rows(rows: Iterable[tuple[str, Any]]) -> Table:
    """Lay out labels and values; a label that repeats is printed once."""
    before = None
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(min_width=11, no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, value in rows:
        shown = value if isinstance(value, Text) else printable(value)
        table.add_row("" if label == before else label, shown)
        before = label
    return table
