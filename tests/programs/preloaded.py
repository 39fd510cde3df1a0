"""Runs scripts in forks of one process that has imported torch already, which saves seconds each.

Arguments are names of further modules to import.

Each line of stdin is a request. {"script", "argv", "env", "output", "record", "watch", "fault"}:
run a script with that environment added, its stdout and stderr in the file `output`; `record`, if
not null, holds the arguments of `fpdiff.record`, which then watches it; `watch` a folder for the
digests that `fpdiff verify` compares; `fault` the bit to flip below the recorder. The answer is
{"pid"}. {"ended": pid} asks for {"code"}, which is null while it runs.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flip import Fault, flipping

import fpdiff
from fpdiff.fingerprint.record import inline  # noqa: F401  # What fpdiff.record imports.
from fpdiff.fingerprint.record.watch import watch


def run_script(request: dict[str, Any]) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(request["env"])
    sys.argv = [request["script"], *request["argv"]]
    sys.path.insert(0, str(Path(request["script"]).parent))
    try:
        with ExitStack() as stack:
            if request["fault"] is not None:
                stack.enter_context(flipping(Fault(**request["fault"])))
            if request["record"] is not None:
                stack.enter_context(fpdiff.record(**request["record"]))
            if request["watch"] is not None:
                watch(request["watch"])
            runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001  # The fork must not return to the parent's loop.
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # What a fork shares, and neither collects nor searches.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What is printed by accident must not be taken for an answer.
    running = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            running.discard(pid)
            answer = {"code": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if pid == 0:
                os._exit(run_script(request))
            running.add(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), file=answers, flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


main()
