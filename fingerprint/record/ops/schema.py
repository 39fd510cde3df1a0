"""What an operator reads, writes and returns, worked out once from its schema."""

from dataclasses import dataclass
from typing import Any

import torch

from fpdiff.fingerprint.catalogue import base_name, load

_ONLY_SHAPE = frozenset(
    f"aten.{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "unsqueeze", "squeeze",
        "alias", "detach", "lift_fresh", "unsqueeze_", "squeeze_", "detach_", "flatten", "ravel",
        "view_as", "expand_as", "_to_copy", "to", "contiguous", "lift",
    )
)  # fmt: skip
"""Views that keep the order of the elements, and copies: shape and dtype say all about them."""

_IDLE = frozenset(f"aten.{name}" for name in ("resize_", "resize_as_", "set_", "record_stream")) | {
    "_c10d_functional._wrap_tensor_autograd"
}
_NO_DATA = frozenset(("prim", "prims", "profiler", "debugprims"))


@dataclass(frozen=True, eq=False)
class OpSchema:
    """One operator; or a kernel or compiled code, as if it were one.

    Attributes:
        name: as events show it, `aten.addmm.default`.
        arguments: names of the arguments, in order.
        writes: names of the arguments that it writes.
        ignores: names of arguments whose bytes before the call it does not read.
        ignores_where: (another argument, a value, names of those it does not read where the other
            has that value), or None.
        allocates: its outputs are memory that nobody has written.
        is_view: its outputs are views of its first argument, nothing is computed.
        shows_arguments: its other arguments decide what it computes or looks at.
        only_reshapes: it is a view of all that its first argument looks at.
        draws: it draws from a random generator.
        undefined: indices of outputs that hold nothing.
        returns_arguments: indices of returns that are arguments it wrote.
        by_element: it works on lists, element by element.
        is_collective: it exchanges tensors with other ranks.
        meets_others: it is part of a collective, or may be.
        waits: it waits for a collective and computes nothing.
        is_idle: it touches no data.
    """

    name: str
    arguments: tuple[str, ...] = ()
    writes: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()
    ignores_where: tuple[str, Any, frozenset[str]] | None = None
    allocates: bool = False
    is_view: bool = False
    shows_arguments: bool = True
    only_reshapes: bool = False
    draws: bool = False
    undefined: frozenset[int] = frozenset()
    returns_arguments: frozenset[int] = frozenset()
    by_element: bool = False
    is_collective: bool = False
    meets_others: bool = False
    waits: bool = False
    is_idle: bool = False

    def ignored(self, others: list[tuple[str, Any]]) -> frozenset[str]:
        """Return names of the arguments that a call does not read, given the non-tensors."""
        if self.ignores_where is not None:
            name, value, unread = self.ignores_where
            if (name, value) in others:
                return self.ignores | unread
        return self.ignores


def is_of_collectives(op: Any) -> bool:
    """Return whether an operator launches collectives or waits for them."""
    return getattr(op, "namespace", None) in ("c10d", "_c10d_functional")


def describe(op: torch._ops.OpOverload) -> OpSchema:
    """Return what an operator reads, writes and returns."""
    name = str(op)
    base = base_name(name)
    memory = load("memory")
    schema: Any = op._schema
    arguments = tuple(argument.name for argument in schema.arguments)
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    outs = {a.name for a in schema.arguments if a.name in written and a.kwarg_only}
    silent = set(memory["silent_writes"]["ops"].get(base, ()))
    ignores = outs | set(memory["unread"]["ops"].get(base, ()))
    if base in memory["fill"]["ops"]:
        ignores |= {arguments[0]} if arguments else set()
    where = memory["unread_where"]["ops"].get(base)
    is_view = bool(getattr(op, "is_view", False)) and not written
    collective = is_of_collectives(op)
    waits = base == "_c10d_functional.wait_tensor"
    idle = base in _IDLE or op.namespace in _NO_DATA
    return OpSchema(
        name=name,
        arguments=arguments,
        writes=frozenset(written | silent),
        ignores=frozenset(ignores),
        ignores_where=None if where is None else (where[0], where[1], frozenset(where[2])),
        allocates=base in memory["allocate"]["ops"],
        is_view=is_view,
        shows_arguments=base not in _ONLY_SHAPE,
        only_reshapes=is_view and (base in _ONLY_SHAPE or len(arguments) == 1),
        draws=torch.Tag.nondeterministic_seeded in op.tags,
        undefined=frozenset(int(i) for i in memory["undefined"]["outputs"].get(base, ())),
        returns_arguments=frozenset(
            i for i, r in enumerate(schema.returns) if r.alias_info is not None and not is_view
        ),
        by_element=op._opname.startswith(("_foreach_", "_fused_", "_amp_foreach_")),
        is_collective=collective and not waits and not idle,
        meets_others=collective or base == "aten.copy_",
        waits=waits,
        is_idle=idle,
    )
