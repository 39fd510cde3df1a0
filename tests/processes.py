"""Real processes for tests: fpdiff as a user starts it, with and without torchrun."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fpdiff

TESTS = Path(__file__).parent
PROGRAMS = TESTS / "programs"
BENCH = TESTS.parent / "bench"
TRAIN_GPT = Path(fpdiff.__file__).parent / "examples" / "train_gpt.py"
TINY = PROGRAMS / "train_tiny.py"

FPDIFF = [sys.executable, "-m", "fpdiff"]
PYTHON = [sys.executable]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--standalone", "--nproc-per-node", "2"),
]

Result = subprocess.CompletedProcess[str]

_LAUNCHER_PREFIXES = ("FPDIFF_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_")
_LAUNCHER_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def environment(changes: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the environment of a child: no launcher's variables, one thread, plain output."""
    found = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in _LAUNCHER_NAMES
    }
    found |= {"PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return found | {name: str(value) for name, value in (changes or {}).items()}


def run(
    command: Iterable[object],
    *,
    env: Mapping[str, object] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> Result:
    """Run a command to its end and return its exit code, stdout and stderr."""
    return subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(env),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )


def start(
    command: Iterable[object], *, env: Mapping[str, object] | None = None
) -> "subprocess.Popen[str]":
    """Start a command in a process group of its own."""
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        start_new_session=True,
    )


def recording(out: Path, command: Iterable[object], *options: object) -> list[str]:
    """Return the command line that records a command."""
    return [str(word) for word in (*FPDIFF, "record", "--out", out, *options, "--", *command)]


def record(out: Path, command: Iterable[object], *options: object, **how: Any) -> Result:
    """Record a command, see `run` for `how`."""
    return run(recording(out, command, *options), **how)


def record_well(out: Path, command: Iterable[object], *options: object, **how: Any) -> Result:
    """Record a command that must succeed."""
    result = record(out, command, *options, **how)
    assert result.returncode == 0, result.stderr
    return result


def compare(a: Path, b: Path, *options: object) -> Result:
    """Compare two runs on the command line."""
    return run([*FPDIFF, "compare", a, b, *options])


def compare_json(a: Path, b: Path, *options: object) -> dict[str, Any]:
    """Return the verdict on two runs as the command line's --json gives it."""
    result = compare(a, b, "--json", *options)
    verdict: dict[str, Any] = json.loads(result.stdout)
    expected = {"identical": 0, "diverged": 1, "incomparable": 2}[verdict["verdict"]]
    assert result.returncode == expected
    assert result.stderr == ""
    return verdict


def assert_fails(result: Result, *parts: str) -> None:
    """One sentence on stderr, exit code 2, no traceback."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("fpdiff: ")
    assert len(result.stderr.splitlines()) == 1, result.stderr
    for part in parts:
        assert part in result.stderr


def parameters(output: str) -> list[str]:
    """Return the checksums that the ranks of a program have printed as `params HEX`."""
    found = sorted(re.findall(r"params ([0-9a-f]+)", output))
    assert found, output
    return found


def rank_info(out: Path, rank: int = 0) -> dict[str, Any]:
    """Return what a rank says of itself."""
    info: dict[str, Any] = json.loads((out / "ranks" / f"rank={rank:05}.json").read_text())
    return info


def run_info(out: Path) -> dict[str, Any]:
    """Return the content of run.json."""
    info: dict[str, Any] = json.loads((out / "run.json").read_text())
    return info


class Jobs:
    """Calls that run two at a time, begun before anybody asks for their results."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._futures: dict[str, Future[Any]] = {}

    def add(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Line a call up."""
        self._futures[name] = self._pool.submit(call, *args, **kwargs)

    def __getitem__(self, name: str) -> Any:
        """Wait for a call and return its result."""
        return self._futures[name].result()

    def close(self) -> None:
        """Drop what has not begun, wait for what has."""
        self._pool.shutdown(cancel_futures=True)


class Preloaded:
    """A process that has imported torch and forks to run scripts, see programs/preloaded.py."""

    def __init__(self, *modules: str, trains: bool = True) -> None:
        """Import modules, and what the first optimizer would, in a second, unless nothing trains.

        That imports Triton too, which decides then whether it interprets kernels.
        """
        if trains:
            modules += ("torch._dynamo",)
        self._process = subprocess.Popen(
            [*PYTHON, PROGRAMS / "preloaded.py", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment({"PYTHONPATH": BENCH}),
        )
        self._lock = threading.Lock()

    def start(
        self,
        script: Path,
        *argv: object,
        output: Path,
        env: Mapping[str, object] | None = None,
        record: dict[str, Any] | None = None,
        watch: Path | None = None,
        fault: dict[str, Any] | None = None,
    ) -> int:
        """Start a script and return its pid; see programs/preloaded.py for the rest."""
        request = {
            "script": str(script),
            "argv": [str(word) for word in argv],
            "env": {name: str(value) for name, value in (env or {}).items()},
            "output": str(output),
            "record": record,
            "watch": None if watch is None else str(watch),
            "fault": fault,
        }
        return int(self._ask(request)["pid"])

    def wait(self, pid: int, timeout: float = 150) -> int:
        """Return a script's exit code, negative if a signal ended it."""
        end = time.monotonic() + timeout
        while (code := self._ask({"ended": pid})["code"]) is None:
            assert time.monotonic() < end, f"process {pid} has not ended"
            time.sleep(0.01)
        return int(code)

    def run(self, script: Path, *argv: object, output: Path, **how: Any) -> str:
        """Run a script that must succeed and return what it printed."""
        code = self.wait(self.start(script, *argv, output=output, **how))
        assert code == 0, output.read_text()
        return output.read_text()

    def run_ranks(
        self,
        script: Path,
        *argv: object,
        output: Path,
        env: Mapping[str, object] | None = None,
        num_ranks: int = 2,
        fault: dict[str, Any] | None = None,
        **how: Any,
    ) -> str:
        """Run a script as all ranks of a job, as torchrun would; return what they printed."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        job = {"WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        outputs = [
            output.with_name(f"{output.stem} {rank}{output.suffix}") for rank in range(num_ranks)
        ]
        pids = [
            self.start(
                script,
                *argv,
                output=text,
                env={**(env or {}), **job, "RANK": rank, "LOCAL_RANK": rank},
                **(how | {"fault": fault if fault and fault["rank"] == rank else None}),
            )
            for rank, text in enumerate(outputs)
        ]
        for pid, text in zip(pids, outputs, strict=True):
            assert self.wait(pid) == 0, text.read_text()
        output.write_text("".join(text.read_text() for text in outputs))
        return output.read_text()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
