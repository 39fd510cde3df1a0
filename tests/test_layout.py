"""The folders, the links to them, and the public face."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

import fpdiff

ROOT = Path(__file__).resolve().parents[1]
LINKS = ("cli", "examples", "fingerprint", "store")
INITS = [init for link in LINKS for init in sorted((ROOT / link).rglob("__init__.py"))]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_packages_are_the_folders_with_an_init() -> None:
    tomllib = importlib.import_module("tomllib")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings = tomllib.loads(text)["tool"]["setuptools"]
    folders = {"fpdiff"}
    for link in LINKS:
        inits = (ROOT / link).rglob("__init__.py")
        folders |= {".".join(("fpdiff", *p.parent.relative_to(ROOT).parts)) for p in inits}
    assert set(settings["packages"]) == folders
    assert len(settings["packages"]) == len(folders)
    for name, folder in settings["package-dir"].items():
        assert folder == ("fpdiff" if name == "fpdiff" else name.split(".")[1])


def test_packaged_data_exists() -> None:
    assert (ROOT / "fpdiff" / "py.typed").is_file()
    assert list((ROOT / "store" / "sql").glob("*.sql"))
    assert (ROOT / "fingerprint" / "record" / "startup" / "sitecustomize.py").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="a checkout there may have no links")
def test_links_lead_to_the_folders() -> None:
    found = {path.name for path in (ROOT / "fpdiff").iterdir() if path.is_symlink()}
    assert found == set(LINKS)
    for name in LINKS:
        assert (ROOT / "fpdiff" / name).readlink() == Path("..") / name
        assert (ROOT / "fpdiff" / name).resolve() == ROOT / name


@pytest.mark.parametrize("init", INITS, ids=lambda init: init.parent.name)
def test_a_package_lists_its_modules(init: Path) -> None:
    """docs/explanation/architecture.md says so: one line each, in the docstring."""
    told = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    listed = re.findall(r"^(\w+/?) {2,}\S", told, re.MULTILINE)
    modules = [path.stem for path in init.parent.glob("*.py") if path != init]
    folders = [f"{path.parent.name}/" for path in init.parent.glob("*/*.py")]
    assert sorted(listed) == sorted({*modules, *folders})


def test_all_is_sorted_and_is_what_is_public() -> None:
    assert list(fpdiff.__all__) == sorted(fpdiff.__all__)
    own = {
        name
        for name, one in vars(fpdiff).items()
        if not name.startswith("_")
        and not inspect.ismodule(one)
        and str(getattr(one, "__module__", "")).startswith("fpdiff")
    }
    assert own | {"__version__"} == set(fpdiff.__all__)


def test_the_version_is_that_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{fpdiff.__version__}"\n' in text
    assert f"\n## {fpdiff.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
