"""Verdicts made up for tests of what renders them, and what tests look at in real ones."""

from typing import Any

from fpdiff.fingerprint.bisect.verdict import (
    Compared,
    Origin,
    OriginGroup,
    RankStep,
    Verdict,
)


def side(digest: str, **changes: Any) -> dict[str, Any]:
    return {"digest": digest, "dtype": "float32", "shape": [8, 64]} | changes


def origin(**changes: Any) -> Origin:
    fields: dict[str, Any] = {
        "rank": 1,
        "step": 3,
        "microbatch": 0,
        "phase": "forward",
        "module": "blocks.1.mlp",
        "module_class": "Sequential",
        "call": 0,
        "op": None,
        "source": None if changes.get("phase") == "init" else "train.py:34",
        "occurrence": 0,
        "kind": "output",
        "slot": "out.0",
        "seq": 2150,
        "class_": "computation",
        "component": None,
        "summary": "output out.0 of module blocks.1.mlp differs although all it read is equal",
        "a": side("bcd76c52-415b-dde1-0000-000000000001"),
        "b": side("31f684f9-0d48-6a3f-0000-000000000002"),
        "inputs": ["forward output blocks.1.mlp.2.out.0"],
        "num_inputs": 1,
        "matched_before": 2149,
        "strength": "the event it read is equal",
        "hint": "run with torch.use_deterministic_algorithms(True)",
    }
    return Origin(**(fields | changes))


def group(*origins: int, **changes: Any) -> OriginGroup:
    fields: dict[str, Any] = {
        "rank": 1,
        "count": len(origins),
        "of": 40,
        "origins": [*origins],
        "members": ["blocks.1.mlp"],
        "patterns": {"blocks.1.mlp": len(origins)},
        "hint": None,
    }
    return OriginGroup(**(fields | changes))


def rank_step(**changes: Any) -> RankStep:
    fields = {
        "rank": 1,
        "step": 3,
        "steps_matched": 3,
        "events": 673,
        "mismatched": 305,
        "only_a": 0,
        "only_b": 0,
        "moved": 0,
        "carriers": 304,
    }
    return RankStep(**(fields | changes))


def compared(**changes: Any) -> Compared:
    fields: dict[str, Any] = {
        "rung": "layer",
        "ranks": [0, 1],
        "steps": [0, 7],
        "num_steps": 8,
        "events": 10424,
    }
    return Compared(**(fields | changes))


def verdict(**changes: Any) -> Verdict:
    first = (changes.get("origins") or [origin()])[0]
    fields: dict[str, Any] = {
        "verdict": "diverged",
        "summary": f"rank {first.rank}, step {first.step}, {first.phase}: {first.summary}"
        f" ({first.class_})",
        "a": "runs/a",
        "b": "runs/b",
        "compared": compared(),
        "first_step": first.step,
        "origins": [first],
        "num_origins": 1,
        "groups": [group(0, rank=first.rank)],
        "rank_steps": [rank_step()],
    }
    return Verdict(**(fields | changes))


def only(verdict: Verdict) -> Origin:
    assert [o.summary for o in verdict.origins[1:]] == []
    return verdict.origins[0]


def place(origin: Origin) -> tuple[int, str, str, str | None, str]:
    return origin.step, origin.phase, origin.module, origin.op, origin.class_
