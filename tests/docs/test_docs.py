"""The documentation: its commands work, its links lead somewhere, and it leaves nothing out."""

import dataclasses
import difflib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from synthetic import write_run

import fpdiff
from fpdiff.fingerprint.bisect import classify, verdict
from fpdiff.fingerprint.certify import certificate
from fpdiff.store import errors, schema
from fpdiff.store.views import VIEWS, connect, query

ROOT = Path(__file__).resolve().parents[2]

# Commands that need a network, a cluster or somebody's training job, and so are only shown.
NOT_EXECUTED = {
    "README.md": [
        "$ fpdiff record --out runs/a -- torchrun --nproc-per-node 8 train.py --config big.yaml",
        "$ fpdiff record --out runs/b -- torchrun --nproc-per-node 8 train.py --config big.yaml",
        "$ fpdiff compare runs/a runs/b",
        """$ fpdiff sql runs/a runs/b "select run, rank, step, value from metrics\
 where name = 'loss'\"""",
        "$ fpdiff show runs/a",
    ],
    "CONTRIBUTING.md": [
        "$ python -m venv .venv && . .venv/bin/activate",
        "$ pip install -c constraints.txt -e '.[dev]'",
        "$ .ci/run",
        "$ ruff check . && ruff format .",
        "$ mypy",
        "$ python -m pytest tests/unit",
    ],
    "docs/how-to/record-under-slurm.md": [
        "$ srun --ntasks-per-node 1 fpdiff record --out runs/a -- torchrun \\",
        "$ srun --ntasks-per-node 8 fpdiff record --out runs/a -- python train.py",
        "$ mpirun -np 16 fpdiff record --out runs/a -- python train.py",
    ],
    "docs/how-to/find-the-operator.md": ["$ fpdiff compare runs/a runs/b"],
    "docs/explanation/overhead.md": [
        "$ python bench/suite.py --quick --out trial",
        "$ python bench/suite.py --out figures",
        "$ python bench/suite.py --publish figures",
    ],
    "docs/explanation/how-compare-scales.md": [
        "$ python bench/fleet.py --ranks 3072 --steps 800 --compact",
        "$ python bench/fleet.py --ranks 64,128 --steps 50,100 --events 18,120 --plot growth.png",
        "$ python bench/fleet.py --ranks 64 --steps 800 --events 978 --plant 33:1 --count",
    ],
    "docs/how-to/runs-on-object-storage.md": [
        "$ fpdiff record --out s3://runs/a -- torchrun --nproc-per-node 8 train.py",
        "$ fpdiff record --out s3://runs/b -- torchrun --nproc-per-node 8 train.py",
        "$ fpdiff compare s3://runs/a s3://runs/b",
        """$ fpdiff sql s3://runs/a s3://runs/b "select run, rank, step, value from metrics\"""",
        "$ fpdiff show s3://runs/a",
        "$ fpdiff certify s3://runs/a",
        "$ fpdiff upload runs/c s3://runs/c",
    ],
    "docs/how-to/compare-many-ranks.md": [
        "$ fpdiff compact runs/a",
        "$ fpdiff compact runs/b",
        "$ fpdiff compare runs/a runs/b",
        "$ fpdiff compare runs/a runs/b --count",
        "$ pip install 'fpdiff[ray]'",
        "$ fpdiff compare runs/a runs/b --engine ray --address HOST:6379",
        "$ fpdiff compare runs/a runs/b --ranks 0,8-15 --steps 600:700",
    ],
}
LANGUAGES = {"console", "json", "python", "sql", "text"}


def _load(name: str) -> ModuleType:
    """Import a script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


transcripts = _load("refresh_transcripts")
PAGES = {
    page.name: page
    for page in [
        *transcripts.pages(),
        *map(transcripts.Page.read, (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")),
    ]
}
NEED_TRITON = {"docs/how-to/find-the-kernel.md"}  # Which has wheels for Linux only.
WITH_COMMANDS = [
    name
    for name, page in PAGES.items()
    if page.commands() and (sys.platform == "linux" or name not in NEED_TRITON)
]


def text_of(name: str) -> str:
    return str(PAGES[name].text)


def section(text: str, heading: str) -> str:
    """Return what stands below a heading, down to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"there is no heading {heading!r}"
    return re.split(rf"\n#{{1,{level}}} ", rest)[0]


def documented(text: str) -> set[str]:
    """Return the names in code type in the first cells of the tables in a text."""
    cells = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


# Commands


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "Future[Any]"]]:
    """Run the commands of all pages, two pages at a time; those that others need come first."""
    scratch = tmp_path_factory.mktemp("pages")
    folders = {name: scratch / name.replace("/", "-") for name in WITH_COMMANDS}
    futures: dict[str, Future[Any]] = {}

    def run(name: str) -> Any:
        page = PAGES[name]
        if page.after is not None:
            futures[page.after].result()
        return transcripts.run_page(page, folders[name], folders)

    with ThreadPoolExecutor(max_workers=2) as pool:
        needed = {PAGES[name].after for name in WITH_COMMANDS}
        for name in sorted(
            WITH_COMMANDS, key=lambda n: (PAGES[n].after is not None, n not in needed)
        ):
            futures[name] = pool.submit(run, name)
        yield futures


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_do_what_the_page_shows(name: str, results: dict[str, "Future[Any]"]) -> None:
    found = results[name].result()
    commands = PAGES[name].commands()
    assert len(found) == len(commands)
    for command, result in zip(commands, found, strict=True):
        told = "\n".join([f"$ {command.text}", *result.output])
        assert result.exit_code == command.expected_code(result.output), told
        assert result.exit_code == command.expected_code(command.shown), told
        likeness = alike(command.shown, result.output)
        assert likeness > 0.9, f"run docs/refresh_transcripts.py ({likeness:.2f}):\n{told}"


def alike(shown: list[str], printed: list[str]) -> float:
    """Return which share of the words shown were printed, in this order.

    Numbers and digests differ between machines, and with them where lines are broken.
    """
    words = _words([line for line in shown if line != "..."])
    if not words:
        return 1.0 if shown or not printed else 0.0
    matcher = difflib.SequenceMatcher(None, words, _words(printed), autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / len(words)


def _words(lines: list[str]) -> list[str]:
    blanked = re.sub(r"[0-9a-f]*\d[0-9a-f.,-]*", "0", "\n".join(lines))
    return re.sub(r"[─\s]+", " ", blanked).split()


def test_the_likeness_of_transcripts() -> None:
    assert alike(["a 17 b", "c"], ["a 18", "b c"]) == 1
    assert alike(["a", "...", "z"], ["a", "b", "c", "z"]) == 1
    assert alike(["a b"], ["a c"]) == 0.5
    assert alike([], ["a"]) == 0
    assert alike(["..."], ["a"]) == 1


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_executed_or_listed(name: str) -> None:
    shown_only = []
    for block in PAGES[name].blocks():
        assert block.language in LANGUAGES
        if block.language == "text":
            shown_only += [line for line in block.text.splitlines() if line.startswith("$ ")]
    assert shown_only == NOT_EXECUTED.get(name, [])


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_compile(name: str) -> None:
    for block in PAGES[name].blocks():
        if block.language == "python":
            compile(block.text, name, "exec")


def test_the_tutorial_plays_the_demo() -> None:
    from fpdiff.cli.demo import COMMANDS

    shown = [command.text for command in PAGES["docs/tutorial.md"].commands()]
    for words, _ in COMMANDS[:3]:
        assert " ".join(words) in shown


def test_refreshing_keeps_what_is_left_out() -> None:
    page = transcripts.Page(ROOT / "README.md", "```console\n$ a\n1\n...\n9\n$ b\n> c\nold\n```\n")
    printed = [transcripts.Result(list("abcde"), 0), transcripts.Result(["new"], 0)]
    assert page.refreshed(printed) == "```console\n$ a\na\n...\ne\n$ b\n> c\nnew\n```\n"


# Links


def anchors(text: str) -> set[str]:
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    prose = re.sub(r"^```.*?^```$", "", page.text, flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.path.parent / path).resolve() if path else page.path
        assert linked.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), f"{name}: {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", text_of("README.md")))
    assert linked >= PAGES.keys() - {"README.md"}


# Completeness


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    script = ROOT / "docs" / "generate_cli.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)


def test_the_page_of_the_command_line_has_every_command_and_exit_code() -> None:
    from fpdiff.cli import main

    text = text_of("docs/reference/cli.md")
    for command in main.app.registered_commands:
        assert f"## fpdiff {command.name}\n" in text
        assert f"fpdiff {command.name}" in text_of("README.md")
    for code in (0, 1, main.ERROR, main.INTERRUPTED, main.BROKEN_PIPE):
        assert f"\n| {code} |" in section(text, "## Exit codes")


SCHEMA_PAGE = "docs/reference/schema.md"


@pytest.mark.parametrize("table", schema.TABLES)
def test_every_column_is_documented(table: str) -> None:
    names = documented(section(text_of(SCHEMA_PAGE), f"### Table `{table}`"))
    expected = set(schema.TABLES[table].names)
    if table == "steps":
        prefixes = ("content", "structure")
        generated = {f"{p}_{group}" for p in prefixes for group in schema.GROUPS}
        assert generated <= expected
        expected = expected - generated | {f"{p}_GROUP" for p in prefixes} | {*schema.GROUPS}
    assert names == expected


@pytest.mark.parametrize("table", schema.TABLES)
def test_types_and_nulls_of_columns_are_documented(table: str) -> None:
    words = {"extension<arrow.uuid>": "UUID", "list<element: int32>": "list of int32"}
    words |= {"list<item: int32>": "list of int32", "list<item: int64>": "list of int64"}
    words["list<item: string>"] = "list of string"
    text = section(text_of(SCHEMA_PAGE), f"### Table `{table}`")
    for column in schema.TABLES[table]:
        if table == "steps" and column.nullable:
            continue
        kind = words.get(str(column.type), str(column.type)) + (", null" if column.nullable else "")
        assert f"| `{column.name}` | {kind} |" in text


SPARK = {
    "int32": "INT",
    "int64": "BIGINT",
    "string": "STRING",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "extension<arrow.uuid>": "BINARY",
    "list<item: int32>": "ARRAY<INT>",
    "list<item: int64>": "ARRAY<BIGINT>",
    "list<item: string>": "ARRAY<STRING>",
}
TRINO = {
    "INT": "integer",
    "BIGINT": "bigint",
    "STRING": "varchar",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "BINARY": "varbinary",
    "ARRAY<INT>": "array(integer)",
    "ARRAY<BIGINT>": "array(bigint)",
    "ARRAY<STRING>": "array(varchar)",
}


@pytest.mark.parametrize("table", schema.TABLES)
def test_columns_for_spark_and_trino_are_those_of_the_files(table: str) -> None:
    text = text_of("docs/how-to/read-from-spark-or-trino.md")
    # Of steps, which has very many columns, those that are always there.
    columns = [c for c in schema.TABLES[table] if table != "steps" or not c.nullable]
    spark = [(c.name, SPARK[str(c.type).replace("element", "item")]) for c in columns] + [
        ("rank", "INT")
    ]

    def shown(pattern: str) -> list[tuple[str, ...]]:
        found = re.search(pattern, text, re.DOTALL)
        assert found is not None
        return [tuple(column.split()) for column in found[1].split(",")]

    assert shown(rf'{table.upper()} = """(.*?)"""') == spark
    trino = rf"CREATE TABLE hive\.runs\.{table}_a \((.*?)\n\) WITH"
    assert shown(trino) == [(name, TRINO[kind]) for name, kind in spark]


def test_every_phase_and_kind_is_documented() -> None:
    text = text_of(SCHEMA_PAGE)
    assert documented(section(text, "### Phases")) == {*schema.PHASES}
    assert documented(section(text, "### Kinds")) == {*schema.KINDS}


def test_every_view_is_documented(tmp_path: Path) -> None:
    text = text_of(SCHEMA_PAGE)
    connection = connect({"made-up": fpdiff.open_run(write_run(tmp_path / "run"))})
    for view in VIEWS:
        part = section(text, f"### View `{view}`")
        columns = query(connection, f"select * from {view} limit 0").columns
        names = documented(part)
        if not names:  # It points to tables.
            names = {"run", "rank", "site"} & set(re.findall(r"`(\w+)`", part))
            for table in re.findall(r"#table-(\w+)", part):
                names |= set(schema.TABLES[table].names)
            names -= {"inputs"} if view == "events" else set()
        assert names == set(columns), view


def test_every_file_of_a_run_is_documented() -> None:
    text = section(text_of(SCHEMA_PAGE), "## Files")
    for name in schema.CONTENTS:
        assert f"| `{name}" in text


VERDICT_PAGE = "docs/reference/verdict.md"
VERDICT_CLASSES = [
    one
    for one in vars(verdict).values()
    if inspect.isclass(one) and dataclasses.is_dataclass(one) and one.__module__ == verdict.__name__
]


@pytest.mark.parametrize("kind", VERDICT_CLASSES, ids=lambda kind: str(kind.__name__))
def test_every_field_of_a_verdict_is_documented(kind: Any) -> None:
    part = section(text_of(VERDICT_PAGE), f"## `{kind.__name__}`").split("\n### ")[0]
    first_cells = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
    names = {field.name.rstrip("_") for field in dataclasses.fields(kind)}
    assert set(first_cells) - {"schema"} == names


def test_every_class_component_and_exit_code_is_documented() -> None:
    text = text_of(VERDICT_PAGE)
    assert documented(section(text, "### Classes")) == {*verdict.CLASSES}
    assert documented(section(text, "### Components")) == {*classify.COMPONENTS}
    for name, code in (("identical", 0), ("diverged", 1), ("incomparable", 2)):
        assert verdict.Verdict(verdict=name, summary="", a="", b="").exit_code == code
        assert f"| {code} | `{name}` |" in section(text, "## Exit codes")


CERTIFY_PAGE = "docs/how-to/certify-one-run.md"


@pytest.mark.parametrize(
    "kind",
    [certificate.Certificate, certificate.Check, certificate.Finding],
    ids=lambda k: k.__name__,
)
def test_every_field_of_a_certificate_is_documented(kind: Any) -> None:
    text = section(text_of(CERTIFY_PAGE), "## What `--json` prints")
    table = text.partition(f"| `{kind.__name__}` |")[2].partition("\n\n")[0]
    assert documented(table) - {"schema"} == {field.name for field in dataclasses.fields(kind)}


def test_every_check_is_documented() -> None:
    text = section(text_of(CERTIFY_PAGE), "## What is checked")
    assert documented(text) == {*certificate.CHECKS}


@pytest.mark.parametrize("name", fpdiff.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    text = text_of("docs/reference/python.md")
    one = getattr(fpdiff, name)
    if inspect.isclass(one):
        row = re.search(rf"^\| `{name}` \| `(\w+)` \|", text, re.MULTILINE)
        assert row is not None
        assert row[1] in {base.__name__ for base in one.__mro__}
        return
    heading = next(h for h in (f"### `{name}`", f"## `{name}`") if f"\n{h}\n" in text)
    if callable(one):
        part = section(text, heading)
        for parameter in inspect.signature(one).parameters.values():
            assert (
                f"`{parameter.name}`" in part
                or f"{parameter.name}," in part
                or (f"{parameter.name})" in part)
            )
            if parameter.default is not inspect.Parameter.empty:
                default = str(parameter.default).replace("''", '""')
                assert default in part


def test_every_error_is_public() -> None:
    raised = {n for n, e in vars(errors).items() if inspect.isclass(e)}
    assert raised <= set(fpdiff.__all__)


def test_every_reason_for_a_blind_spot_is_documented() -> None:
    text = section(text_of("docs/explanation/what-a-fingerprint-can-tell.md"), "## Blind spots")
    sources = [p.read_text() for p in (ROOT / "fingerprint").rglob("*.py")]
    found = {
        reason.replace("{name}", "NAME").replace("{call}", "CALL")
        for source in sources
        for reason in re.findall(r'blind_spots\[f?"([^"]+)"\]', source)
        + re.findall(r'raise Undigestible\("([^"]+)"', source)
    }
    assert len(found) > 5
    assert found <= documented(text)
