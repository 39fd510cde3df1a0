"""Runs a script as both ranks of a job, in forks of one process that has imported torch."""

import os
import runpy
import socket
import sys

import torch  # noqa: F401  # Once, for both.


def main() -> None:
    script = sys.argv[1]
    del sys.argv[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    pids = []
    for rank in "01":
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=rank, LOCAL_RANK=rank)
            runpy.run_path(script, run_name="__main__")
            return  # The interpreter's end is the rank's.
        pids.append(pid)
    sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in pids))


if __name__ == "__main__":
    main()
