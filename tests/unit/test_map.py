"""ARCHITECTURE.md has a line for each room (a folder of modules), and the docstring of each room names its modules."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
ROOMS = TEXT.partition("## Rooms")[2].partition("\n## ")[0]
PAGES = {"ARCHITECTURE.md": TEXT} | {
    path.name: path.read_text() for path in (ROOT / "docs" / "decisions").glob("*.md")
}
PACKAGES = ("rq_core", "sql_audit")

UNLISTED = {"cli", "commands", "demo", "migrations"}
"""The rooms whose docstring does not name the modules: each module there is one command or one migration step."""


def rooms() -> list[Path]:
    """Return the folders of the packages that have modules."""
    return [
        path.parent for name in PACKAGES for path in sorted((ROOT / name).glob("*/**/__init__.py"))
    ]


def listed_in(docstring: str) -> list[str]:
    """Return the modules that a docstring lists. The name of a module is before the colon of its entry."""
    heads = re.findall(r"^- ((?:``\w+``(?:, )?)+):", docstring, re.MULTILINE)
    return re.findall(r"\w+", " ".join(heads))


@pytest.mark.parametrize(
    "room",
    [each for each in rooms() if each.name not in UNLISTED],
    ids=lambda room: str(room.relative_to(ROOT)),
)
def test_the_docstring_of_a_package_names_each_of_its_modules_once(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    modules = sorted(path.stem for path in room.glob("*.py") if not path.name.startswith("_"))

    assert sorted(listed_in(docstring)) == modules


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_one_line_in_the_architecture_page(package: str) -> None:
    lines = re.findall(rf"^- `{package}/(\w+)/`", ROOMS, re.MULTILINE)
    there = {path.relative_to(ROOT / package).parts[0] for path in rooms() if package in path.parts}

    assert sorted(lines) == sorted(there)


def test_the_architecture_page_names_the_modules_outside_these_packages() -> None:
    there = {
        path.name
        for name in PACKAGES
        for path in (ROOT / name).glob("*.py")
        if not path.name.startswith("_")
    }

    assert there <= set(re.findall(r"\w+\.py", ROOMS))


def test_the_architecture_page_names_each_folder_of_tests() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}
    (line,) = re.findall(r"^- `tests/`.*(?:\n  .*)*", ROOMS, re.MULTILINE)

    assert folders <= set(re.findall(r"\w+", line))


def test_the_architecture_page_has_at_most_200_lines_of_at_most_120_characters() -> None:
    lines = TEXT.splitlines()

    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_file_that_a_page_names_exists(page: str) -> None:
    names = set(re.findall(r"(\w+\.(?:py|lua))\b", PAGES[page]))
    includes = set(re.findall(r"`(?:include|enqueue|sweep)/(?:\w+/)?(\w+)`", PAGES[page]))
    tree = {
        path.name
        for folder in ("rq_core", "sql_audit", "tests", "lua", "scripts")
        for path in (ROOT / folder).rglob("*.*")
    }

    assert names - tree == {"NAME.lua"} & names
    assert {f"{name}.lua" for name in includes} <= tree
