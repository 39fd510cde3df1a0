"""Run the commands that the documentation shows, and put what they print into the pages.

    python docs/refresh_transcripts.py                       # every page
    python docs/refresh_transcripts.py docs/tutorial.md      # these pages

A block fenced as `console` is a transcript. A line that begins with `$ ` is a command, a line
that begins with `> ` goes on with it, and the others are what it printed. Where `...` stands alone
on a line, output is left out; as many lines as now are kept before and after it.

A block fenced as `python` whose first line is `# NAME.py` is a file that the commands find. The
commands of a page run in order, in one shell, in a new folder that holds `train_gpt.py` too. A page
with the comment `<!-- after: docs/tutorial.md -->` starts from a copy of what that page left.

The tests run the same commands and compare what comes out with what the pages show.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 240

_AFTER = re.compile(r"<!-- after: (\S+) -->")
_FENCE = re.compile(r"```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")
_MARK = "fpdiff-docs-exit-code"
_ELISION = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, and its lines."""

    language: str
    text: str


@dataclass
class Command:
    """One command of a transcript and the output that the page shows."""

    text: str
    shown: list[str] = field(default_factory=list)

    def expected_code(self, printed: list[str]) -> int:
        """Return the exit code: 0, or 1 for a comparison or certificate that says so."""
        first = (printed or [""])[0]
        return int(
            (self.text.startswith("fpdiff compare") and first.startswith("diverged: "))
            or (self.text.startswith("fpdiff certify") and first.startswith("unsound: "))
        )


@dataclass(frozen=True)
class Result:
    """What a command printed, stderr included, and its exit code."""

    output: list[str]
    exit_code: int


@dataclass(frozen=True)
class Page:
    """A page and what the commands in it need."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Read a page."""
        return cls(path, path.read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """The path from the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def after(self) -> str | None:
        """Name of the page from whose folder this one starts."""
        match = _AFTER.search(self.text)
        return match[1] if match else None

    def blocks(self) -> Iterator[Block]:
        """Yield the fenced blocks in order."""
        for match in _FENCE.finditer(self.text):
            yield Block(match[1], match[2])

    def commands(self) -> list[Command]:
        """Return the commands of all transcripts in order."""
        found = (parse(b.text) for b in self.blocks() if b.language == "console")
        return [command for commands in found for command in commands]

    def files(self) -> dict[str, str]:
        """Return the files that the page gives, by name."""
        texts = (block.text for block in self.blocks() if block.language == "python")
        return {match[1]: text for text in texts if (match := _FILE.match(text))}

    def refreshed(self, results: list[Result]) -> str:
        """Return the page's text with the outputs replaced."""
        remaining = iter(results)

        def transcript(match: re.Match[str]) -> str:
            if match[1] != "console":
                return match[0]
            lines = []
            for command in parse(match[2]):
                head, *more = command.text.splitlines()
                lines += [f"$ {head}", *(f"> {line}" for line in more)]
                lines += shorten(next(remaining).output, command.shown)
            return "\n".join(["```console", *lines, "```"])

        return _FENCE.sub(transcript, self.text)


def pages() -> list[Page]:
    """Return README.md and the pages below docs/; those that others start from come first."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return sorted(map(Page.read, paths), key=lambda page: page.after is not None)


def parse(transcript: str) -> list[Command]:
    """Return the commands of one transcript.

    Raises:
        ValueError: it does not begin with a command.
    """
    commands: list[Command] = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:]))
        elif not commands:
            raise ValueError(f"a console block begins with {line!r}, not with a command")
        elif line.startswith("> ") and not commands[-1].shown:
            commands[-1].text += f"\n{line[2:]}"
        else:
            commands[-1].shown.append(line)
    return commands


def shorten(output: list[str], shown: list[str]) -> list[str]:
    """Leave out of `output` what `shown` leaves out."""
    if _ELISION not in shown:
        return output
    before = shown.index(_ELISION)
    after = len(shown) - before - 1
    if len(output) <= before + after:
        return output
    return [*output[:before], _ELISION, *(output[-after:] if after else [])]


def run_page(page: Page, folder: Path, finished: Mapping[str, Path]) -> list[Result]:
    """Run the commands of a page in `folder`, which is made.

    Args:
        page: the page.
        folder: must not exist.
        finished: folders of the pages that have been run, by name.

    Raises:
        subprocess.TimeoutExpired: the commands take too long.
    """
    if page.after is None:
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "train_gpt.py", folder)
    else:
        shutil.copytree(finished[page.after], folder)
    for name, text in page.files().items():
        (folder / name).write_text(text, encoding="utf-8")
    commands = page.commands()
    script = folder / ".commands.sh"
    script.write_text("".join(f"{c.text}\necho '{_MARK}' $?\n" for c in commands))
    with (folder / ".output").open("w+") as output:
        subprocess.run(
            ["bash", script.name],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        output.seek(0)
        return _results(output.read().replace(sys.executable, "python"))


def _environment() -> dict[str, str]:
    """Return a quiet environment in which `fpdiff` and `torchrun` are those of this Python."""
    scripts = str(Path(sys.executable).parent)
    kept = ("HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
        # Without it, torchrun looks this host's name up, which fails where there is no network.
        "PET_LOCAL_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }


def _results(output: str) -> list[Result]:
    results = []
    lines: list[str] = []
    for line in output.splitlines():
        if line.startswith(_MARK):
            results.append(Result(lines, int(line.split()[1])))
            lines = []
        else:
            lines.append(line.rstrip())
    return results


def main() -> None:
    """Refresh the pages named on the command line, or all."""
    names = {Path(name).resolve() for name in sys.argv[1:]}
    finished: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="fpdiff-docs-") as scratch:
        chosen = [page for page in pages() if page.commands()]
        needed = {page.after for page in chosen if not names or page.path in names}
        for page in chosen:
            if names and page.path not in names and page.name not in needed:
                continue
            folder = finished[page.name] = Path(scratch) / page.name.replace("/", "-")
            results = run_page(page, folder, finished)
            for command, result in zip(page.commands(), results, strict=True):
                if result.exit_code != command.expected_code(result.output):
                    sys.exit("\n".join([f"{page.name}: $ {command.text}", *result.output]))
            if not names or page.path in names:
                text = page.refreshed(results)
                if scratch in text or sys.prefix in text:
                    sys.exit(f"{page.name} would show a path of this machine: leave it out")
                page.path.write_text(text, encoding="utf-8")
                print(f"{page.name}: {len(results)} commands")


if __name__ == "__main__":
    main()
