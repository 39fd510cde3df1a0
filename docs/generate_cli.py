"""Write docs/reference/cli.md from what the commands say with --help.

python docs/generate_cli.py           # write the page
python docs/generate_cli.py --check   # exit with 1 if the page is not up to date
"""

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "reference" / "cli.md"
COMMANDS = ("record", "compare", "certify", "sql", "show", "compact", "upload", "verify", "demo")

HEAD = """\
# The command line

<!-- Generated: edit the commands' help texts, then run `python docs/generate_cli.py`. -->

Each command prints this text with `--help`.
`python -m fpdiff` is the same as `fpdiff`.

Data goes to stdout and remarks go to stderr, so `fpdiff compare A B --json > verdict.json` is safe.
An error is one sentence on stderr; `fpdiff --debug COMMAND ...` adds the traceback.
Colours are used on a terminal only, and never when `NO_COLOR` is set.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; `compare`: identical; `certify`: sound; `verify`: valid |
| 1 | `compare`: diverged; `certify`: found something; `verify`: recording changed something |
| 2 | an error, or wrong usage; `compare`, `verify`: cannot say |
| 130 | interrupted with Ctrl-C |
| 141 | the reader of a pipe went away |

Of the other commands none ends with 1 of its own accord.
`record` ends with the exit code of the command that it ran, and with 128 + N where signal N ended
that command.
It ends with 2 if it could not start the command, or if nothing was recorded.
"""

NOTES = {
    "record": """\
Windows: `--steps 10:20,400` means steps 10 to 19 and step 400, as a Python slice counts.
`--ranks 0,3-5` means ranks 0, 3, 4 and 5.
`--modules` is a regular expression that is searched for in a module's path.
[Narrow a recording and cut its cost](../how-to/narrow-and-cut-cost.md) has the details, and
[Keep runs on object storage](../how-to/runs-on-object-storage.md) what `s3://` does.
""",
    "compare": "[The verdict](verdict.md) describes what `--json` prints.\n",
    "certify": "[Certify one run](../how-to/certify-one-run.md) says what is checked.\n",
    "verify": "[Verify that recording changes nothing](../how-to/verify-the-recorder.md) shows.\n",
    "upload": "[Keep runs on object storage](../how-to/runs-on-object-storage.md) says when.\n",
    "sql": "[The store](schema.md) describes the tables.\n",
}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD, _section("fpdiff", [])]
    for command in COMMANDS:
        parts.append(_section(f"fpdiff {command}", [command]) + NOTES.get(command, ""))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _section(title: str, arguments: list[str]) -> str:
    shown = subprocess.run(
        [sys.executable, "-m", "fpdiff", *arguments, "--help"],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    return f"## {title}\n\n```text\n{lines}\n```\n\n"


def main() -> None:
    """Write the page, or check it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not up to date: run `python docs/generate_cli.py`")


if __name__ == "__main__":
    main()
