"""Find where two PyTorch runs that should be identical part ways.

In a script, all of it optional:

    with fpdiff.record("runs/a"):   # instead of `fpdiff record --out runs/a -- ...`
        train()
    fpdiff.step(n)                  # step n begins here
    fpdiff.log("grad_norm", norm)   # a metric to compare
    fpdiff.mark("logits", tensor)   # a tensor to compare

Afterwards, here or from the command line:

    verdict = fpdiff.compare("runs/a", "runs/b")
    run = fpdiff.open_run("runs/a")
    certificate = fpdiff.certify("runs/a")
    fpdiff.compact("runs/a")         # of very many ranks: faster to compare
    fpdiff.upload("runs/a", "s3://bucket/a")
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from fpdiff.fingerprint.record.current import log, mark, step
from fpdiff.store.errors import (
    BucketError,
    CompareError,
    FpdiffError,
    QueryError,
    RecordError,
    StoreError,
)

if TYPE_CHECKING:
    from fpdiff.fingerprint.bisect.verdict import Verdict
    from fpdiff.fingerprint.certify.certificate import Certificate
    from fpdiff.store.compacting import Compacted
    from fpdiff.store.run import Run

__version__ = "0.1.0"

__all__ = [
    "BucketError",
    "CompareError",
    "FpdiffError",
    "QueryError",
    "RecordError",
    "StoreError",
    "__version__",
    "certify",
    "compact",
    "compare",
    "log",
    "mark",
    "open_run",
    "record",
    "step",
    "upload",
]


@contextmanager
def record(
    path: str | PathLike[str],
    *,
    level: str = "layer",
    steps: str = "",
    modules: str = "",
    ranks: str = "",
    stats: bool = False,
    digest: str = "xxh3-128",
    rehash: bool = False,
    collectives: bool = True,
    first_step: int = 0,
    force: bool = False,
) -> Iterator[None]:
    """Record what this process computes inside the `with` block, as one rank of a run.

    Every rank of a job enters it with the same path. The options are those of `fpdiff record`.

    Args:
        path: folder of the run; it must not be one yet.
        level: rung, "step", "layer", "op" or "kernel".
        steps: window such as "10:20,400"; all steps if empty.
        modules: regular expression searched for in module paths; all modules if empty.
        ranks: window such as "0,3-5"; all ranks if empty.
        stats: record l2, absmax and nonfinite count too.
        digest: "xxh3-128", or "mix128" which devices compute.
        rehash: notice arguments that were changed behind the dispatcher's back.
        collectives: at rung layer, record what collectives were given and left.
        first_step: number of the first step.
        force: replace an existing run.

    Raises:
        RecordError: an option is wrong, or the folder exists or cannot be written. In a process
            that `fpdiff record` is recording already, only a warning says so.
    """
    from fpdiff.fingerprint.record.inline import recording
    from fpdiff.fingerprint.record.settings import Settings, parse_ranks, parse_steps
    from fpdiff.store.bucket import is_url, refuse_other_scheme

    refuse_other_scheme(fspath(path))
    if is_url(path):
        raise RecordError(
            f"{fspath(path)} is on object storage, which a training process does not write to:"
            " record to a folder, then `fpdiff upload` it"
        )
    settings = Settings(
        out=str(Path(fspath(path)).absolute()),
        level=level,
        steps=parse_steps(steps),
        modules=modules,
        ranks=parse_ranks(ranks),
        stats=stats,
        digest=digest,
        rehash=rehash,
        collectives=collectives,
        first_step=first_step,
    )
    with recording(settings, force=force):
        yield


def open_run(path: str | PathLike[str]) -> "Run":
    """Open a run for reading.

    Args:
        path: folder of the run, or `s3://BUCKET/FOLDER`, as everywhere below.

    Raises:
        StoreError: there is no run, or it cannot be read.
        BucketError: object storage refuses or cannot be reached.
    """
    from fpdiff.store.run import Run

    return Run.open(path)


def compare(
    a: str | PathLike[str],
    b: str | PathLike[str],
    *,
    steps: str = "",
    ranks: Sequence[int] = (),
    align: str = "number",
    count: bool = False,
) -> "Verdict":
    """Compare two runs.

    Args:
        a: folder of the run that is taken as the reference.
        b: folder of the other.
        steps: compare only these, such as "10:20,400".
        ranks: compare only these.
        align: "number" pairs steps of the same number; "auto" finds which step of one run the
            other, a resumed one, begins with.
        count: read every step that differs, and count the events that do.

    Raises:
        StoreError: a run cannot be read.
        BucketError: object storage refuses or cannot be reached.
        RecordError: `steps` is not understood.
        CompareError: the two have nothing in common that could be compared.
    """
    from fpdiff.fingerprint.bisect.compare import compare_runs
    from fpdiff.fingerprint.record.settings import parse_steps

    return compare_runs(
        open_run(a),
        open_run(b),
        steps=parse_steps(steps),
        ranks=tuple(ranks),
        align=align,
        count=count,
    )


def certify(path: str | PathLike[str]) -> "Certificate":
    """Say what the record of one run is worth.

    Args:
        path: folder of the run.

    Raises:
        StoreError: there is no run, or nothing of it can be read.
        BucketError: object storage refuses or cannot be reached.
    """
    from fpdiff.fingerprint.certify.certify import certify_run
    from fpdiff.store.run import Run

    return certify_run(Run.open(path, compact=False))


def compact(path: str | PathLike[str]) -> "Compacted":
    """Copy the step rows and sites of all ranks of a run into a few large files.

    Comparing runs of very many ranks is faster then.

    Args:
        path: folder of the run.

    Raises:
        StoreError: the run is damaged or has not ended, or the files cannot be written.
    """
    from fpdiff.store.compacting import compact_run

    return compact_run(fspath(path))


def upload(path: str | PathLike[str], address: str) -> str:
    """Copy a run to object storage, or what is not there yet; return its address.

    Args:
        path: folder of the run.
        address: `s3://BUCKET/FOLDER`.

    Raises:
        StoreError: the folder is no run, or something else is at the address.
        BucketError: the storage refuses or cannot be reached.
    """
    from fpdiff.store.upload import upload_run

    return upload_run(path, address)
