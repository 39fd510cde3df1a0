"""Which mismatched events no mismatched event explains."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from fpdiff.fingerprint.bisect.align import Aligned
from fpdiff.fingerprint.bisect.arm import (
    Flags,
    Ints,
    Site,
    is_at_parameter,
    is_batch,
    is_kind,
    is_outside,
    is_start,
)
from fpdiff.fingerprint.bisect.following import (
    by_other_options,
    by_other_training,
    what_follows,
)


@dataclass(frozen=True)
class Findings:
    """What is mismatched in a step of a rank.

    Attributes:
        mismatched: rows that differ and count, see `find_origins`.
        origins: rows among them that read nothing mismatched, in program order.
        moved: rows that come at another place of the step.
        num_evaluations: events of evaluations that only one run has.
        num_idle: ops outside the modules that differ and lead to nothing that counts.
    """

    mismatched: Ints
    origins: Ints
    moved: Ints
    num_evaluations: int
    num_idle: int = 0

    @property
    def num_carriers(self) -> int:
        """How many of the mismatched read something mismatched."""
        return len(self.mismatched) - len(self.origins)

    def __bool__(self) -> bool:
        """Return whether anything that counts differs."""
        return bool(self.mismatched.size or self.moved.size)


def find_origins(aligned: Aligned, used: Flags | None = None) -> Findings:
    """Split the mismatched rows into origins and carriers.

    What one run has beyond the end of a record that was cut off does not count, nor do seven
    kinds of difference: the state of a generator at step start (what a module drew from says
    where it began to matter), what is listed again under the name that it goes by, logged
    numbers, training flags of modules that one run alone has (what they do tells), evaluation
    passes that only one run made and that left nothing which is read elsewhere, ops outside of
    all modules that nothing else read (a printed norm, a checkpoint), and where a tensor is met
    first.

    Args:
        aligned: the step.
        used: rows that led to something on another rank, which counts as reading them.
    """
    evaluations = _evaluations(aligned)
    quiet = aligned.having(is_quiet)
    mismatched = ~aligned.equal & ~quiet & ~evaluations & ~beyond_the_end(aligned)
    mismatched &= ~before_the_start(aligned) & ~listed_again(aligned)
    mismatched &= aligned.paired | ~aligned.having(is_kind("training_flag"))
    remade, remade_otherwise = _remade(aligned, mismatched)
    mismatched &= ~remade
    mismatched &= ~_met_elsewhere(aligned, mismatched)
    mismatched &= ~_listened_elsewhere(aligned, mismatched)
    idle = _idle(aligned, mismatched, used)
    mismatched &= ~idle
    led_on = _led_on(aligned, evaluations, mismatched)
    mismatched |= led_on
    evaluations &= ~led_on
    follows = what_follows(aligned, mismatched)
    late, reads_late = _made_later(aligned, mismatched)
    follows = mismatched & (follows | remade_otherwise | reads_late)
    origin = mismatched & ~follows & ~_read_by(aligned, mismatched)
    # What follows from the state explains none of it, though state may be listed after it was made.
    state = mismatched & ~follows & aligned.having(is_start)
    origin |= state & ~_read_by(aligned, mismatched & ~remade_otherwise)
    origins = np.flatnonzero(origin)
    anywhere = quiet | aligned.having(is_evaluation) | aligned.having(is_outside)
    anywhere |= aligned.having(_is_noted_anywhere)
    if by_other_options(aligned, mismatched).any():
        anywhere |= aligned.having(_is_of_optimizers_step)
    if by_other_training(aligned, mismatched).any():  # Fewer updates go before others.
        anywhere |= aligned.having(_is_of_update)
    moved = aligned.moved(~anywhere & ~aligned.having(is_at_parameter))
    moved = np.union1d(moved, np.flatnonzero(late))
    told = np.concatenate([origins, moved, np.flatnonzero(follows)])
    moved = np.union1d(moved, _in_turn(aligned, mismatched, told))
    return Findings(
        np.flatnonzero(mismatched), origins, moved, int(evaluations.sum()), int(idle.sum())
    )


def is_quiet(site: Site) -> bool:
    """Return whether a difference in a site's events says nothing by itself."""
    return bool(site["kind"] == "metric" or is_generator(site))


def is_generator(site: Site) -> bool:
    """Return whether a site is a generator's state at step start."""
    return bool(site["kind"] == "generator" and site["phase"] == "init")


def is_evaluation(site: Site) -> bool:
    """Return whether a site belongs to a forward without gradients."""
    return bool(site["phase"] == "eval")


def _is_met(site: Site) -> bool:
    """Return whether a site is of a tensor that no event made, and that is no root's argument."""
    return site["kind"] == "input" and not is_batch(site)


def _is_op(site: Site) -> bool:
    return site["op"] is not None


def _is_noted_anywhere(site: Site) -> bool:
    """Return whether a site's place in a step says nothing of the program.

    What a step starts from is listed in any order, and what a collective left when it is read. What
    was done with a batch at another place tells that by itself.
    """
    return bool(site["phase"] == "init" or site["kind"] == "received" or is_batch(site))


def _is_of_optimizers_step(site: Site) -> bool:
    return bool(site["phase"] == "optimizer")


def _is_of_update(site: Site) -> bool:
    return bool(site["phase"] in ("backward", "optimizer"))


def _is_of_call(site: Site) -> bool:
    return bool(site["phase"] in ("eval", "forward"))


def _is_own_tensor(site: Site) -> bool:
    """Return whether a site is of a module's parameter or buffer, at the start of a step."""
    return bool(site["phase"] == "init" and site["kind"] in ("parameter", "buffer"))


def _is_pass(site: Site) -> bool:
    """Return whether a site comes with each evaluation pass: what the root got and returned."""
    returned = site["kind"] == "output" and not site["module"]
    return is_evaluation(site) and (is_batch(site) or returned)


def beyond_the_end(aligned: Aligned) -> Flags:
    """Return the rows that one arm has after the end of the other, where that was cut off."""
    result = np.zeros(len(aligned), bool)
    for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b)):
        if arm.is_cut:
            present = np.flatnonzero(index >= 0)
            result[present[-1] + 1 if len(present) else 0 :] = True
    return result


def before_the_start(aligned: Aligned) -> Flags:
    """Return the rows that one arm lacks because its record starts with this step's first module.

    Tensors that ops before it made are there first seen where an op reads them.
    """
    result: Flags = np.zeros(len(aligned), bool)
    started = [arm.is_the_start for arm in (aligned.a, aligned.b)]
    if started[0] != started[1]:
        other = aligned.index_b if started[0] else aligned.index_a
        result = (other < 0) & aligned.having(is_kind("input")) & aligned.having(_is_op)
    return result


def listed_again(aligned: Aligned) -> Flags:
    """Return the rows of state that one arm alone lists, and lists again under another name.

    A part of a model that is tried out before the model is called is taken for the root, and its
    parameters go by their own names until the model takes over.
    """
    result: Flags = np.zeros(len(aligned), bool)
    for arm, index, other in (
        (aligned.a, aligned.index_a, aligned.index_b),
        (aligned.b, aligned.index_b, aligned.index_a),
    ):
        called = np.flatnonzero(arm.sites.having(_is_of_call)[arm.site])
        rows = np.flatnonzero((other < 0) & aligned.having(_is_own_tensor))
        if not len(called) or not len(rows):
            continue
        own = arm.sites.having(_is_own_tensor)[arm.site]
        later = {arm.content_of(i) for i in np.flatnonzero(own).tolist() if i > called[0]}
        for row in rows.tolist():
            i = int(index[row])
            result[row] = i < called[0] and arm.content_of(i) in later
    return result


def sides(aligned: Aligned) -> Ints:
    """Return 0 for rows that both arms have, 1 for A's alone, 2 for B's alone."""
    return np.where(aligned.paired, 0, np.where(aligned.index_a >= 0, 1, 2)).astype(np.int64)


def blocks(*columns: Ints | Flags) -> Ints:
    """Number the stretches of rows over which none of the columns changes."""
    changes = np.zeros(len(columns[0]), bool)
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    result: Ints = np.cumsum(changes)
    return result


def _evaluations(aligned: Aligned) -> Flags:
    """Return the rows of evaluation passes that only one run made.

    A stretch of one-sided rows is such a pass if it holds an event of the root itself. Without
    one it is a difference inside a pass that both made, which counts like any other.
    """
    side = sides(aligned)
    evaluation = aligned.having(is_evaluation)
    candidates = (side > 0) & evaluation
    stretch = blocks(side, evaluation)
    whole = np.unique(stretch[candidates & aligned.having(_is_pass)])
    result: Flags = candidates & np.isin(stretch, whole)
    return result


def _led_on(aligned: Aligned, evaluations: Flags, mismatched: Flags) -> Flags:
    """Return the rows of evaluation passes that left something which a mismatched event read.

    In training mode a batch norm's averages, say. What an evaluation drew from a generator shows
    where the generator is drawn from next. Only of operators it is known what they read.
    """
    result: Flags = np.zeros(len(aligned), bool)
    if not evaluations.any():
        return result
    producer, event = aligned.edges
    made = evaluations & aligned.having(is_kind("result", "written"))
    result[producer[made[producer] & mismatched[event]]] = True
    inside = evaluations[producer] & evaluations[event]
    while (found := inside & result[event] & ~result[producer]).any():
        result[producer[found]] = True
    return result


def _idle(aligned: Aligned, mismatched: Flags, used: Flags | None) -> Flags:
    """Return the mismatched ops outside of the modules that no other mismatched event read.

    Not even through one another; ops of both sides of a structural difference alike. Any later
    scalar may come from a number that the program took out of a tensor: one that only one run
    took explains nothing. Nor does what only one run made explain whoever read an equal tensor in
    the other. What an op of both runs made otherwise from equal things is no idle matter, whoever
    read it; garbage is.
    """
    idle: Flags = mismatched & aligned.having(is_outside)
    if used is not None:
        idle &= ~used
    if not idle.any():
        return idle
    reached: Flags = mismatched & ~idle
    producer, event = aligned.edges
    one_sided_number = ~aligned.paired & aligned.having(is_kind("number"))
    among = idle[producer] & mismatched[event]
    event, producer = event[among], producer[among]
    counts = ~one_sided_number[producer] & ~_had_elsewhere(aligned, producer, event)
    while (found := idle[producer] & reached[event] & counts).any():
        reached[producer[found]] = True
        idle[producer[found]] = False
    made = idle & aligned.paired & aligned.having(is_kind("result", "written"))
    made &= ~_read_by(aligned, mismatched | aligned.having(is_kind("uninitialised")))
    while (found := made[producer] & idle[event] & ~made[event]).any():
        made[event[found]] = True
    return idle & ~made


def _remade(aligned: Aligned, mismatched: Flags) -> tuple[Flags, Flags]:
    """Return the calls in which a resumed run alone made a tensor of what both start from.

    Such is a gradient scaler's scale, which is restored as a number. The first are of what both
    start from; the others follow from its difference.
    """
    alike, otherwise = np.zeros((2, len(aligned)), bool)
    started = [arm.is_the_start for arm in (aligned.a, aligned.b)]
    if started[0] == started[1]:
        return alike, otherwise
    arm, rows = (aligned.a, aligned.rows[0]) if started[0] else (aligned.b, aligned.rows[1])
    start: dict[tuple[bytes, int], bool] = {}  # by content, whether anything of it is mismatched
    for index in np.flatnonzero(arm.sites.having(is_start)[arm.site]).tolist():
        content = arm.digest[index].tobytes(), int(arm.description[index])
        start[content] = start.get(content, False) or bool(mismatched[rows[index]])
    alone = (~aligned.paired & aligned.having(is_outside))[rows]
    made = alone & arm.sites.having(is_kind("result", "written"))[arm.site]
    calls = {}
    for index in np.flatnonzero(made).tolist():
        content = arm.digest[index].tobytes(), int(arm.description[index])
        if content in start:
            calls[arm.call_of(index)] = start[content]
    for index in np.flatnonzero(alone).tolist():
        if (differs := calls.get(arm.call_of(index))) is not None:
            (otherwise if differs else alike)[rows[index]] = True
    return alike, otherwise


def _made_later(aligned: Aligned, mismatched: Flags) -> tuple[Flags, Flags]:
    """Return equal ops outside of the modules that made what a step starts from in one arm alone.

    In the other they come after that: they moved, and the state that differs follows. It is the
    second that is returned.
    """
    late, follows = np.zeros((2, len(aligned)), bool)
    state = mismatched & aligned.paired & aligned.having(is_start)
    made = aligned.equal & aligned.having(is_outside) & aligned.having(is_kind("result", "written"))
    for arm, rows, other in (
        (aligned.a, aligned.rows[0], aligned.index_b),
        (aligned.b, aligned.rows[1], aligned.index_a),
    ):
        event, producer = (rows[index] for index in arm.edges)
        found = state[event] & made[producer] & (other[producer] > other[event])
        late[producer[found]] = True
        follows[event[found]] = True
    return late, follows


def _had_elsewhere(aligned: Aligned, producer: Ints, event: Ints) -> Flags:
    """Return the edges from what one arm made to an event that read its equal in the other arm."""
    result = np.zeros(len(producer), bool)
    made = aligned.having(is_kind("result", "written", "input")) & ~aligned.paired
    for edge in np.flatnonzero(made[producer] & aligned.paired[event]).tolist():
        own, at = aligned.arm_of(int(producer[edge]))
        is_b = own is aligned.b
        other = aligned.a if is_b else aligned.b
        reader = (aligned.index_a if is_b else aligned.index_b)[event[edge]]
        result[edge] = other.has(other.direct(int(reader)), own, at)
    return result


def _met_elsewhere(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the inputs in one arm whose readers read the same, met before, in the other.

    A tensor that no event made is recorded once in a step, where it is first met: in an evaluation,
    or by an op that prints its norm, if only one run has these. One that a module is given and no
    op reads need only be anywhere in the other arm.
    """
    result: Flags = mismatched & ~aligned.paired & aligned.having(_is_met)
    if not result.any():
        return result
    producer, event = aligned.edges
    among = result[producer]
    producer, event = producer[among], event[among]
    read = np.zeros((2, len(aligned)), bool)
    read[aligned.paired[event].astype(int), producer] = True
    both = aligned.paired[event]
    producer, event = producer[both], event[both]
    result &= read[1] | ~read[0]
    result[producer[~_had_elsewhere(aligned, producer, event)]] = False
    for row in np.flatnonzero(result & ~read[1]).tolist():
        own, index = aligned.arm_of(row)
        other = aligned.a if own is aligned.b else aligned.b
        result[row] = other.has(np.arange(len(other)), own, index)
    return result


def _listened_elsewhere(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return the gradients of outputs that are under another module in the other arm, and equal.

    A gradient is recorded under the module whose backward computed it, of which a pass within a
    recomputation knows less.
    """
    rows = np.flatnonzero(mismatched & ~aligned.paired & aligned.having(is_kind("gradient")))
    found: tuple[dict[Hashable, list[int]], ...] = ({}, {})
    for row in rows.tolist():
        own, index = aligned.arm_of(row)
        place = own.site_of(index)["slot"], own.content_of(index)
        found[own is aligned.b].setdefault(place, []).append(row)
    result: Flags = np.zeros(len(aligned), bool)
    for both in found[0].keys() & found[1].keys():
        result[found[0][both] + found[1][both]] = True
    return result


def _in_turn(aligned: Aligned, mismatched: Flags, told: Ints) -> Ints:
    """Return rows that stand for those that nothing told explains, since they read one another.

    One of two ops reads what the other wrote in A, and the other way round in B: each explains the
    other, so what differs is their order. The first of them in A is told.
    """
    rows = np.flatnonzero(mismatched & aligned.paired)
    if (np.diff(aligned.index_b[rows]) > 0).all():  # Nothing reads what comes after it.
        return np.zeros(0, np.int64)
    found: list[int] = []
    explained = np.zeros(len(aligned), bool)
    explained[told] = True
    while (rows := np.flatnonzero(mismatched & ~_spread(aligned, explained, mismatched))).size:
        found.append(int(rows[0]))
        explained[rows[0]] = True
    return np.array(found, np.int64)


def _spread(aligned: Aligned, flags: Flags, among: Flags) -> Flags:
    """Return the rows that are flagged or that read such a one, in either arm, over and over."""
    result: Flags = flags.copy()
    num_flagged = -1
    while num_flagged != (num_flagged := int(result.sum())):
        for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b)):
            present = np.flatnonzero(index >= 0)
            ordered = present[np.argsort(index[present])]
            result[ordered] = arm.spread(result[ordered], among[ordered])
    return result


def _read_by(aligned: Aligned, mismatched: Flags) -> Flags:
    """Return for each row whether its event, in either arm, read a mismatched one."""
    result = np.zeros(len(aligned), bool)
    for arm, index in ((aligned.a, aligned.index_a), (aligned.b, aligned.index_b)):
        present = index >= 0
        flags = np.zeros(len(arm), bool)
        flags[index[present]] = mismatched[present]
        result[present] |= arm.read_any(flags)[index[present]]
    return result
