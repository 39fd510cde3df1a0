"""A verdict as a person would want to read it: the answer first, then how it was narrowed."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fpdiff.cli.console import print_data, printable
from fpdiff.fingerprint.bisect.verdict import Origin, RankStep, Verdict

MAX_ORIGINS = 5
MAX_INPUTS = 4
_STYLE = {"identical": "bold green", "diverged": "bold red", "incomparable": "bold yellow"}


def render(verdict: Verdict, console: Console) -> None:
    """Print a verdict."""
    content: list[RenderableType] = [_headline(verdict), _rows(_overview(verdict))]
    if verdict.verdict == "diverged":
        content += ["", *_narrowing(verdict), _rows(_effects(verdict))]
    rest = [*_environment(verdict), *_blind_spots(verdict), *_notes(verdict)]
    if rest:
        content += ["", _rows(rest)]
    print_data(console, *content)
    if verdict.next:
        print_data(console, "", "To narrow it further, record both runs again like this:")
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
        steps = f"steps {compared.steps[0]}-{compared.steps[1]}, rung {compared.rung}"
        text = f"{compared.events:,} events, ranks {_ranks(compared.ranks)}, {steps}"
        yield "compared", text


def _narrowing(verdict: Verdict) -> Iterable[RenderableType]:
    first: dict[int, int] = {}
    for order, origin in enumerate(verdict.origins):
        first.setdefault(origin.rank, order)
    for rank in sorted(verdict.rank_steps, key=lambda r: first.get(r.rank, len(verdict.origins))):
        yield _rows([(f"rank {rank.rank}", _rank_line(rank))])
        received = [r for r in verdict.receivers if r.rank == rank.rank]
        for receiver in received:
            text = f"received it from rank {_ranks(receiver.from_)}: {receiver.via}"
            yield _rows([("", text)])
        origins = [o for o in verdict.origins if o.rank == rank.rank]
        for origin in origins[:MAX_ORIGINS]:
            yield Padding(_origin(origin), (0, 0, 0, 2))
        if len(origins) > MAX_ORIGINS:
            rest = len(origins) - MAX_ORIGINS
            yield _rows([("", f"and {rest} more origins on this rank (see --json)")])
        if not origins and not received:
            yield _rows([("", "every difference on this rank follows from others")])


def _rank_line(rank: RankStep) -> str:
    before = f"{rank.steps_matched} equal steps, then " if rank.steps_matched else ""
    extra = [
        f"{count} only in {name}"
        for name, count in (("A", rank.only_a), ("B", rank.only_b))
        if count
    ]
    more = f" ({', '.join(extra)})" if extra else ""
    return (
        f"{before}step {rank.step} differs in {rank.mismatched} of {rank.events} events{more};"
        f" {rank.carriers} only carry it on"
    )


def _origin(origin: Origin) -> RenderableType:
    module = origin.module or "(root)"
    where = f"{origin.phase}, module {module}"
    if origin.module_class:
        where += f" ({origin.module_class}"
        where += f", call {origin.call})" if origin.call else ")"
    if origin.microbatch:
        where += f", microbatch {origin.microbatch}"
    rows: list[tuple[str, Any]] = [
        ("origin", Text(where, style="bold")),
        ("", origin.summary),
        ("class", _class_of(origin)),
    ]
    if origin.count > 1:
        rows.append(("", f"with {origin.count - 1} neighbouring events like it"))
    rows += [(name, _side(side)) for name, side in (("A", origin.a), ("B", origin.b))]
    if origin.num_inputs:
        rows.append(("inputs", f"{origin.num_inputs}, all equal: {_inputs(origin)}"))
    rows.append(("before", f"{origin.matched_before:,} events of this rank matched"))
    rows += [("evidence", line) for line in origin.evidence]
    rows.append(("rests on", origin.strength))
    if origin.hint:
        rows.append(("look at", origin.hint))
    return _rows(rows)


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
    parts = [
        f"{name} from step {step} on" if step is not None else f"{name} never"
        for name, step in (("the loss", effects.loss), ("the parameters", effects.parameters))
    ]
    if effects.healed:
        parts.append("the last step is equal again")
    yield "effects", "what differs: " + "; ".join(parts)
    for metric in verdict.metrics:
        where = f"at step {metric.step} on rank {metric.rank}"
        yield metric.name, f"A {metric.a!r}, B {metric.b!r} {where}"


def _environment(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    if verdict.verdict == "diverged" and not any(d.decides for d in verdict.environment):
        yield "environment", "nothing that decides a kernel's result differs"
    for difference in verdict.environment:
        if difference.decides or verdict.verdict == "diverged":
            sides = f"A {_short(difference.a)}, B {_short(difference.b)}"
            yield "environment", f"{difference.key}: {sides}"


def _blind_spots(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    label = "not seen"
    for spot in verdict.blind_spots:
        yield label, f"{spot['reason']} (A {spot['a']}, B {spot['b']} times)"
        label = ""


def _notes(verdict: Verdict) -> Iterable[tuple[str, Any]]:
    for note in verdict.notes:
        yield "note", note


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


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
