"""All measurements of cost with one command: a table and a figure.

    python bench/suite.py --out FOLDER [--quick] [--msprobe]
    python bench/suite.py --publish FOLDER

Runs overhead.py on three sizes of model, throughput.py, compare_time.py and fleet.py, one after the
other in processes of their own, and leaves `suite.json`, which holds all that was measured,
`suite.md` and `suite.png` in the folder. On two idle cores this takes about half an hour.
`--quick` tries everything but the larger models within a minute; its figures mean nothing.

`--publish` puts the tables of a folder between the markers in docs/explanation/overhead.md, and its
figure beside that page.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import compare_time
import fleet
import machine
import overhead
import throughput
from conditions import NO_OP, NO_RECORDER
from drawing import draw_suite
from tables import Table

PAGE = machine.ROOT / "docs" / "explanation" / "overhead.md"
FIGURE = "overhead.png"
"""Beside the page."""

BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->\n"


@dataclass(frozen=True)
class Part:
    """A measurement: the module that makes it, its options, and those that make it quick."""

    bench: ModuleType
    options: str
    quick: str | None

    def measure(self, *, quick: bool, more: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Run it in a process of its own, and return what it measured."""
        script = str(self.bench.__file__)
        with tempfile.TemporaryDirectory(prefix="fpdiff-bench-") as name:
            path = Path(name) / "found.json"
            options = str(self.quick if quick else self.options).split()
            command = [sys.executable, script, *options, *more, "--json", str(path)]
            if code := subprocess.run(command, check=False).returncode:
                sys.exit(f"{' '.join(command)} has failed with exit code {code}: see above")
            found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            return found


def _overhead(size: str) -> str:
    return f"--size {size} --debug-mode"


PARTS = {
    "overhead 0.5M": Part(overhead, _overhead("0.5M"), f"{_overhead('0.5M')} --quick --threads 1"),
    "overhead 17M": Part(overhead, _overhead("17M"), None),
    "overhead 67M": Part(overhead, _overhead("67M"), None),
    "throughput": Part(throughput, "", "--events 4000 --steps 2 --rounds 2"),
    "compare operators": Part(
        compare_time,
        "--events 100000,300000,1000000",
        "--events 2000,4000 --steps 2 --repeat 1",
    ),
    "compare ranks": Part(
        fleet,
        "--ranks 32,64,128,256 --steps 50,100,200,400 --events 18,240,480,978 --repeat 3",
        "--ranks 2,4 --steps 4,8 --events 18,120 --processes 1",
    ),
}


def measure(path: Path, *, quick: bool, msprobe: bool) -> None:
    """Run all parts; the file holds those that have been run, if one fails."""
    suite: dict[str, Any] = {"machine": machine.describe(), "quick": quick, "parts": {}}
    for name, part in PARTS.items():
        if quick and part.quick is None:
            continue
        begin = time.perf_counter()
        print(f"{name} ...", file=sys.stderr, flush=True)
        more = ("--msprobe",) if msprobe and part.bench is overhead else ()
        suite["parts"][name] = part.measure(quick=quick, more=more)
        path.write_text(json.dumps(suite, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)


def read(path: Path) -> dict[str, list[Any]]:
    """Return what was measured, by part, as the dataclasses of the modules that measured it."""
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    return {name: [PARTS[name].bench.Measured(**row) for row in parts[name]] for name in parts}


def tables(found: dict[str, list[Any]]) -> list[Table]:
    """Return all tables."""
    return [PARTS[name].bench.table_of(measured) for name, measured in found.items()]


def page(path: Path) -> str:
    """Return what was measured, and on what, as Markdown."""
    suite = json.loads(path.read_text(encoding="utf-8"))
    facts = ", ".join(f"{name} {value}" for name, value in suite["machine"].items() if value)
    trial = " --quick`, which is a trial" if suite["quick"] else "`"
    shown = "\n".join(table.markdown() for table in tables(read(path)))
    return f"Measured with `python bench/suite.py{trial}: {facts}.\n\n{shown}"


def draw(found: dict[str, list[Any]], path: Path) -> None:
    """Draw the figure."""
    overheads = {}
    for name, measured in found.items():
        if PARTS[name].bench is overhead:
            shown = [m for m in measured if m.condition not in (NO_RECORDER, NO_OP)]
            overheads[measured[0].size] = shown
    curves = {
        f"{name}{' a step' if name == 'events' else ''}": fleet.points(found["compare ranks"], name)
        for name in fleet.VARIED
    }
    compared = found["compare operators"]
    curves["thousand events of operators"] = [(m.events // 1000, m.seconds) for m in compared]
    draw_suite(path, overheads, curves)


def publish(folder: Path, page_path: Path) -> None:
    """Put the tables between the page's markers, and the figure beside the page.

    Raises:
        ValueError: the page has not one pair of markers.
    """
    text = page_path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after:
        raise ValueError(f"{page_path} needs one pair of lines {BEGIN.strip()} and {END.strip()}")
    shutil.copyfile(folder / "suite.png", page_path.with_name(FIGURE))
    shown = f"{page(folder / 'suite.json')}\n![The same as a figure]({FIGURE})\n"
    page_path.write_text(before + begin + shown + end + after, encoding="utf-8")


def main() -> None:
    """Measure and print the tables, or publish them."""
    parser = argparse.ArgumentParser(description="Measure everything, or publish it.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--out", type=Path, help="folder for what is measured")
    which.add_argument("--publish", type=Path, metavar="FOLDER", help="that a suite has filled")
    parser.add_argument("--quick", action="store_true", help="try everything in a minute")
    parser.add_argument("--msprobe", action="store_true", help="measure msprobe too")
    args = parser.parse_args()
    if args.publish:
        if not (args.publish / "suite.png").exists():
            parser.error(f"{args.publish} holds no suite that has ended")
        if json.loads((args.publish / "suite.json").read_text(encoding="utf-8"))["quick"]:
            parser.error(f"{args.publish} is a trial: publish what was measured without --quick")
        publish(args.publish, PAGE)
        return
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the figure needs matplotlib: pip install matplotlib")
    path = args.out / "suite.json"
    if path.exists():
        parser.error(f"{path} exists: give another folder")
    args.out.mkdir(parents=True, exist_ok=True)
    measure(path, quick=args.quick, msprobe=args.msprobe)
    (args.out / "suite.md").write_text(page(path), encoding="utf-8")
    found = read(path)
    draw(found, args.out / "suite.png")
    for table in tables(found):
        table.show()
    print(f"{path.name}, suite.md and suite.png are in {args.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
