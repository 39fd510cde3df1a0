"""What lies on disk: the tables of a run, their columns, and the version of the format.

This module is the contract; classes elsewhere are conveniences. A run is a folder:

    run.json                                      who, what, when, command
    ranks/rank=00003.json                         environment, settings, blind spots of one rank
    sites/rank=00003/seg-00000.parquet            SITES: static description of points of the program
    events/rank=00003/seg-00000.parquet           EVENTS: one digest of one tensor, 16-byte digests
    steps/rank=00003/seg-00000.parquet            STEPS: one row per closed step
    journal/rank=00003/seg-00001.arrows           the segments not yet turned into Parquet
    attempt=1/                                    a run of its own: the job after its first restart

A segment's three Parquet files carry the same number; `events` is written last and commits it.
Each journal is an Arrow IPC stream of EVENTS batches; new sites and closed steps travel as JSON
in the batches' custom metadata (keys `sites` and `step`), so one file is readable to its last
whole batch.
"""

import uuid
from typing import Final

import pyarrow as pa

VERSION: Final = 4
"""Version of the format; files of a newer one are refused, older ones are read.

Version 2 added `members` to SITES, and the kinds of events that operators leave; version 3 added
`source`; version 4 added `kernels` to EVENTS.
"""

VERSION_KEY: Final = "fpdiff.schema"
"""Key of the version in each file's schema metadata (a decimal string)."""

DIGEST_ALGORITHM: Final = "xxh3-128"
"""Of the events' digests, unless a run was recorded with another; run.json has its name."""

DIGEST_BYTES: Final = 16

CONTENTS: Final = ("run.json", "ranks", "sites", "events", "steps", "journal", "compact")
"""What a run's folder holds, beside later attempts; nothing else in it is ever removed."""

MAX_RANKS: Final = 1_000_000
"""More ranks than any job has; counting to any number would take all memory."""

PHASES: Final = (
    "init",
    "forward",
    "eval",
    "backward",
    "recompute",
    "optimizer",
    "other",
)
"""Phases of a site, in the order in which a step usually passes through them."""

KINDS: Final = (
    "parameter",  # state: a module's parameter
    "buffer",  # state: a module's buffer, persistent or not
    "optimizer_state",  # state: a tensor or number that the optimizer keeps for a parameter
    "master",  # state: a tensor that only the optimizer holds (an fp32 copy, say)
    "option",  # state: an entry of a param_group (lr, betas, fused ...)
    "scaler",  # state: gradient scaler
    "training_flag",  # state: a module's training flag
    "generator",  # state of a random generator: at step start, or before a module that drew
    "input",  # a tensor read that no recorded event produced
    "output",  # a module's output
    "gradient",  # a gradient with respect to a module's output
    "local_gradient",  # a parameter's gradient as accumulated on this rank
    "reduced_gradient",  # a parameter's gradient as the optimizer sees it
    "loss",  # the tensor that backward() was called on
    "metric",  # a value given to fpdiff.log
    "mark",  # a tensor given to fpdiff.mark
    "rewrite",  # an input that is no longer what its producer left
    "result",  # op: what an operator returned
    "written",  # op: an argument of an operator after it wrote there
    "arguments",  # op: the operator's arguments that are no tensors
    "number",  # op: a number that the program took out of a tensor
    "uninitialised",  # op: an operator read memory that no operator had written
    "sent",  # op: what a rank gave to a collective
    "received",  # op: what a rank got from a collective
)
"""What an event's digest is of."""

GROUPS: Final = (*PHASES, "generator", "metrics", "batch", "loss", "parameters")
"""Sub-sequences of a step that STEPS keeps digests of.

`generator` holds the generators' states at step start and `metrics` what the script logged; these
two are in no other group and not in the totals, since unseeded generators and throughput figures
differ harmlessly. `batch` holds the root modules' arguments in training, `loss` what backward() was
called on, `parameters` all parameters at step start and after the optimizer.
"""


def _schema(*fields: pa.Field) -> pa.Schema:
    return pa.schema(fields, metadata={VERSION_KEY: str(VERSION)})


_DIGEST = pa.uuid()

SITES: Final = _schema(
    pa.field("site", pa.int32(), nullable=False),  # number of the site, unique within a rank
    pa.field("phase", pa.string(), nullable=False),  # one of PHASES
    pa.field("kind", pa.string(), nullable=False),  # one of KINDS
    pa.field("module", pa.string(), nullable=False),  # path from the root module; "" is the root
    pa.field("module_class", pa.string(), nullable=False),  # class name, "" where unknown
    pa.field("call", pa.int32(), nullable=False),  # nth call of the module in its microbatch
    pa.field("op", pa.string(), nullable=True),  # operator; null for events of the other rungs
    pa.field("occurrence", pa.int32(), nullable=False),  # nth time in that module call
    pa.field("slot", pa.string(), nullable=False),  # which tensor: out.0, weight, weight.exp_avg
    pa.field("members", pa.string(), nullable=True),  # ranks that a collective is among: 0,1,4
    pa.field("dtype", pa.string(), nullable=False),  # torch's name without "torch."; "" if none
    pa.field("shape", pa.list_(pa.int64()), nullable=False),
    pa.field("source", pa.string(), nullable=True),  # file:line of the program, if one was running
)

EVENTS: Final = _schema(
    pa.field("step", pa.int64(), nullable=False),
    pa.field("microbatch", pa.int32(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),  # program order, total within a rank
    pa.field("site", pa.int32(), nullable=False),
    pa.field("digest", _DIGEST, nullable=False),
    pa.field("inputs", pa.list_(pa.int32()), nullable=False),  # offsets: seq - seq of a producer
    pa.field("span", pa.int32(), nullable=False),  # also reads the `span` events just before it
    pa.field("value", pa.float64(), nullable=True),  # the scalar itself: loss, metric, option
    pa.field("l2", pa.float64(), nullable=True),  # statistics, with --stats
    pa.field("absmax", pa.float64(), nullable=True),
    pa.field("nonfinite", pa.int64(), nullable=True),
    pa.field("kernels", pa.list_(pa.string()), nullable=True),  # of a device, behind an operator
)

STEPS: Final = _schema(
    pa.field("step", pa.int64(), nullable=False),
    pa.field("first_seq", pa.int64(), nullable=False),
    pa.field("events", pa.int64(), nullable=False),  # seqs first_seq .. first_seq + events - 1
    pa.field("microbatches", pa.int32(), nullable=False),
    pa.field("ended", pa.bool_(), nullable=False),  # by the program; else where recording ended
    pa.field("content", _DIGEST, nullable=False),  # over the events' digests in order
    pa.field("structure", _DIGEST, nullable=False),  # over their sites' descriptions in order
    pa.field("chain", _DIGEST, nullable=False),  # over the step before's chain, content, structure
    *(pa.field(f"content_{group}", _DIGEST, nullable=True) for group in GROUPS),
    *(pa.field(f"structure_{group}", _DIGEST, nullable=True) for group in GROUPS),
)

TABLES: Final = {"sites": SITES, "events": EVENTS, "steps": STEPS}

ADDED: Final = {("sites", "members"): 2, ("sites", "source"): 3, ("events", "kernels"): 4}
"""Columns that older files lack, with the version that added them; there they are null."""


def columns_of(name: str, version: int) -> list[str]:
    """Return the columns of a table in files of a version."""
    return [c for c in TABLES[name].names if ADDED.get((name, c), 1) <= version]


def rank_name(rank: int) -> str:
    """Return the Hive partition name of a rank, `rank=00003`."""
    return f"rank={rank:05d}"


def attempt_name(count: int) -> str:
    """Return the name of the folder of an elastic launcher's nth restart, `attempt=1`."""
    return f"attempt={count}"


def segment_name(index: int) -> str:
    """Return the stem of a segment's files, `seg-00000`."""
    return f"seg-{index:05d}"


def digest_text(digest: bytes) -> str:
    """Return a digest as a user sees it: the UUID text that DuckDB prints."""
    return str(uuid.UUID(bytes=digest))
