"""The dependency rule of docs/explanation/architecture.md, read from the imports themselves."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fingerprint", "store", "cli", "examples")

# What the modules of a package may import, beside the standard library and their own package.
ALLOWED = {
    "fpdiff.store": {"duckdb", "numpy", "pyarrow"},
    "fpdiff.fingerprint.digest": {"numpy", "torch", "triton", "xxhash"},
    "fpdiff.fingerprint.catalogue": set[str](),
    "fpdiff.fingerprint.record": {
        "fpdiff.fingerprint.catalogue",
        "fpdiff.fingerprint.digest",
        "fpdiff.store",
        "numpy",
        "torch",
        "xxhash",
    },
    "fpdiff.fingerprint.bisect": {
        "fpdiff.fingerprint.catalogue",
        "fpdiff.store",
        "numpy",
        "pyarrow",
        "ray",
    },
    "fpdiff.fingerprint.verify": {"fpdiff.fingerprint.record", "fpdiff.store"},
    "fpdiff.fingerprint.certify": {
        "fpdiff.fingerprint.bisect",
        "fpdiff.fingerprint.catalogue",
        "fpdiff.fingerprint.digest",
        "fpdiff.fingerprint.record",
        "fpdiff.store",
        "numpy",
        "pyarrow",
        "torch",
    },
    "fpdiff.cli": {
        "duckdb",
        "fpdiff.fingerprint.bisect",
        "fpdiff.fingerprint.certify",
        "fpdiff.fingerprint.record",
        "fpdiff.fingerprint.verify",
        "fpdiff.store",
        "pyarrow",
        "rich",
        "typer",
    },
    "fpdiff.examples": {"torch"},
}
IN_A_TRAINING_JOB = {"numpy", "pyarrow", "torch", "xxhash"}
ON_A_DEVICE = "fpdiff.fingerprint.digest.mix128"
"""May import Triton, and does where a device's tensor is digested."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "fpdiff" else ("fpdiff", *parts)
    return ".".join(parts).removesuffix(".__init__")


def own_files() -> dict[str, Path]:
    """Return the package's modules by the names under which they are imported."""
    paths = [*(ROOT / "fpdiff").glob("*.py")]
    for folder in FOLDERS:
        paths += (ROOT / folder).rglob("*.py")
    return {name_of(path): path for path in sorted(paths)}


FILES = own_files()


@cache
def imports(name: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the import statements of a module, those inside functions too."""
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    return tuple(n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)))


def imported(name: str) -> Iterator[str]:
    """Yield the names of the modules that a module imports."""
    for node in imports(name):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module


def belongs(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def modules_of(package: str) -> list[str]:
    return [name for name in FILES if belongs(name, package)]


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    assert modules_of(package)
    for name in modules_of(package):
        for target in imported(name):
            known = target.partition(".")[0] in sys.stdlib_module_names
            allowed = known or any(belongs(target, one) for one in {package, *ALLOWED[package]})
            assert allowed, f"{name} imports {target}"


def test_every_module_is_under_the_rule() -> None:
    outside = [name for name in FILES if not any(belongs(name, package) for package in ALLOWED)]
    assert set(outside) == {"fpdiff", "fpdiff.__main__", "fpdiff.fingerprint"}


def test_digests_know_nothing_of_files() -> None:
    for name in modules_of("fpdiff.fingerprint.digest"):
        assert not {"io", "os", "pathlib", "shutil", "tempfile"} & set(imported(name))
        assert "open(" not in FILES[name].read_text(encoding="utf-8")


def test_only_the_entry_point_imports_the_command_line() -> None:
    for name in FILES:
        if name != "fpdiff.__main__" and not belongs(name, "fpdiff.cli"):
            assert not any(belongs(target, "fpdiff.cli") for target in imported(name)), name


def test_a_training_job_imports_nothing_more() -> None:
    """What record imports, directly or through other modules of ours."""
    todo = modules_of("fpdiff.fingerprint.record")
    seen = set(todo)
    while todo:
        name = todo.pop()
        for target in imported(name):
            if target in FILES and target not in seen:
                seen.add(target)
                todo.append(target)
            elif target.partition(".")[0] not in sys.stdlib_module_names | {"fpdiff"}:
                allowed = IN_A_TRAINING_JOB | ({"triton"} if belongs(name, ON_A_DEVICE) else set())
                assert target.partition(".")[0] in allowed, target


def test_windows_are_read_without_torch() -> None:
    """The exception that docs/explanation/architecture.md makes for record.settings."""
    assert set(imported("fpdiff.fingerprint.record.settings")) & FILES.keys() == {
        "fpdiff.store.errors"
    }


@pytest.mark.parametrize("name", FILES)
def test_imports_are_absolute(name: str) -> None:
    for node in imports(name):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
    assert not {target.partition(".")[0] for target in imported(name)} & {*FOLDERS}


def test_importing_fpdiff_is_cheap() -> None:
    code = "import fpdiff, sys; sys.exit(len({'torch', 'duckdb', 'pyarrow'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
