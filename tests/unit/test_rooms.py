"""Limits on rooms (folders of modules): on their modules, on the lines of a module, and on names that are defined
twice."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rq_core", "sql_audit")

MODULES_MAX = 16
"""The highest number of modules in a folder. A newcomer can read this number of names at once."""
LINES_MAX = 450
"""The highest number of lines in a module."""
SHARED_NAMES_MAX = 20
"""The highest number of public names that two or more modules may define."""


def modules() -> list[Path]:
    """Return the paths of all Python modules of the packages, and of all Lua includes."""
    python = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    lua = (ROOT / "lua" / "include").rglob("*.lua")
    return sorted(path.relative_to(ROOT) for path in [*python, *lua])


def full_folders(paths: Iterable[Path]) -> dict[str, int]:
    """Return the folders that have too many modules, each with its number of modules."""
    counts = Counter(path.parent for path in paths if path.name != "__init__.py")
    return {str(folder): count for folder, count in counts.items() if count > MODULES_MAX}


def long_modules(lines: dict[Path, int]) -> dict[str, int]:
    """Return the modules that have too many lines, each with the number of its lines."""
    return {str(path): count for path, count in lines.items() if count > LINES_MAX}


def public_names(source: str) -> set[str]:
    """Return the public classes and functions that a module defines at its top level."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.parse(source).body if isinstance(node, kinds)]
    return {node.name for node in nodes if not node.name.startswith("_")}


def shared_names(sources: dict[Path, str]) -> dict[str, list[str]]:
    """Return the public names that several modules define, each with these modules."""
    where = defaultdict(list)
    for path, source in sorted(sources.items()):
        for name in public_names(source):
            where[name].append(str(path))
    return {name: paths for name, paths in sorted(where.items()) if len(paths) > 1}


def test_no_folder_has_too_many_modules() -> None:
    assert {} == full_folders(modules())


def test_no_module_has_too_many_lines() -> None:
    assert {} == long_modules(
        {path: len((ROOT / path).read_text().splitlines()) for path in modules()}
    )


def test_few_public_names_are_defined_in_more_than_one_module() -> None:
    shared = shared_names(
        {path: (ROOT / path).read_text() for path in modules() if path.suffix == ".py"}
    )

    listing = "\n".join(f"{name}: {', '.join(paths)}" for name, paths in shared.items())
    assert len(shared) <= SHARED_NAMES_MAX, f"{len(shared)} public names:\n{listing}"


def test_only_two_packages_have_python_modules_that_contain_lua() -> None:
    """The two rooms are `rq_core/scripts`, which assembles scripts, and `rq_core/testing` with the fake server."""
    found = {
        str(path)
        for path in modules()
        if path.suffix == ".py" and re.search(r"redis\.p?call", (ROOT / path).read_text())
    }

    assert "rq_core/scripts/binding.py" in found
    assert {"rq_core/scripts/binding.py"} == {
        path for path in found if not path.startswith("rq_core/testing")
    }


@pytest.mark.parametrize(("count", "full"), [(16, {}), (17, {"a/room": 17})])
def test_the_check_finds_a_folder_with_more_than_sixteen_modules(
    count: int, full: dict[str, int]
) -> None:
    paths = [Path("a/room") / f"m{n}.py" for n in range(count)]

    assert full == full_folders([Path("a/room/__init__.py"), *paths])


def test_the_check_finds_a_module_with_more_than_450_lines() -> None:
    assert {"b.py": 451} == long_modules({Path("a.py"): 450, Path("b.py"): 451})


def test_the_check_of_shared_names_does_not_count_methods_private_names_and_constants() -> None:
    source = "class Job:\n    def run(self): ...\ndef _step(): ...\nLIMIT = 1\n"
    other = "class Job: ...\nasync def run(): ...\ndef _step(): ...\nLIMIT = 2\n"

    assert {"Job": ["a.py", "b.py"]} == shared_names({Path("a.py"): source, Path("b.py"): other})
