"""The map in ARCHITECTURE.md is that of the tree: who looks for something finds it, and finds no more than there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
MAP = TEXT.partition("## The map")[2].partition("\n## ")[0]
ENTRIES = {
    name: MAP.partition(f"\n{name}/ ")[2].partition(f"\n{after}/ ")[0]
    for name, after in (("rq_core", "sql_audit"), ("sql_audit", "tests"), ("tests", "scripts"))
}


UNLISTED = {"cli", "demo", "migrations"}
"""Rooms whose modules the map does not name: one a command, or one a step."""


def modules(package: str) -> set[str]:
    """The package's rooms, and the modules at its top and in its rooms, as the map names them."""
    root = ROOT / package
    rooms = {path.name for path in root.iterdir() if (path / "__init__.py").exists()}
    files = {
        path.name
        for path in root.rglob("*.py")
        if not path.name.startswith("_") and UNLISTED.isdisjoint(path.relative_to(root).parts)
    }
    return {f"{room}/" for room in rooms} | files


@pytest.mark.parametrize("package", ["rq_core", "sql_audit"])
def test_every_module_is_on_the_map_and_nothing_else(package: str) -> None:
    mapped = set(re.findall(r"(?<![\w/])(\w+(?:\.py|/))(?!\w)", ENTRIES[package]))

    # Both packages have these; they are named where they are explained.
    assert {name for name in mapped if not name.startswith("_")} - {"lua/"} == modules(package)


def test_every_folder_of_tests_is_on_the_map() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}

    assert set(re.findall(r"\w+(?= ·|\n|\s*$| \()", ENTRIES["tests"])) >= folders


def test_every_module_that_the_text_names_is_there() -> None:
    tree = {
        path.name
        for folder in ("rq_core", "sql_audit", "tests")
        for path in (ROOT / folder).rglob("*.py")
    }

    assert set(re.findall(r"(\w+\.py)\b", TEXT)) <= tree
