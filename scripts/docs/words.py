"""Holds the pages, the errors, the help, the comments and messages of the code, and the names of tests to plain words.

python -m scripts.docs.words    exit 1 if one of these texts has one of the patterns
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from rq_core import errors
from rq_core.cli.root import root
from scripts.docs.site import ROOT

_ACTOR: Final = "name the actor: producer, worker, mirror, operator"
PATTERNS: Final = {
    r"\b(?:some|any|every)(?:body|one)\b(?! of)": _ACTOR,
    r"\bnobody\b": "name the actor: no worker, no operator …",
    r"\bwhoever\b": _ACTOR,
    r"\banew\b": "write 'again'",
    r"\bthat which\b": "write 'what', or name it",
    r"\baudit trail\b": "the word is 'audit log'",
}
"""What no text must say, and what to write."""
ON_PAGES: Final = {
    r"\b(?:that|which|what|who) (?:is|are) (?:none|no \w+)\b": "write 'an invalid …'",
}
"""What no page, error or help must say besides."""

RIGHT: Final = {
    "lies.md": "written by scripts/prove/lies, which quotes kinds of lies",
    "mutants.md": "written by scripts/prove/mutants, which quotes the tests",
    "reference/api.md": "generated from docstrings, where None is a value",
}
"""Pages that are not checked, each with the reason."""
_AT_THE_ROOT: Final = ("README.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
_TEST: Final = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def found_in(text: str, patterns: Mapping[str, str] = PATTERNS | ON_PAGES) -> Iterator[str]:
    """Yield each phrase of the text that a pattern finds, with what to write in its place. Code is left out."""
    prose = _CODE.sub("", text)
    for pattern, instead in patterns.items():
        for match in re.finditer(pattern, prose, re.IGNORECASE):
            yield f"{match[0]!r}: {instead}"


def texts() -> Mapping[str, str]:
    """The texts that users read, by where they stand."""
    docs = ROOT / "docs"
    said = {
        f"docs/{path.relative_to(docs)}": path.read_text(encoding="utf-8")
        for path in sorted(docs.rglob("*.md"))
        if str(path.relative_to(docs)) not in RIGHT
    }
    said |= {name: (ROOT / name).read_text(encoding="utf-8") for name in _AT_THE_ROOT}
    said |= {
        f"errors.{name}": inspect.getdoc(kind) or ""
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
    }
    return said | dict(_helps(root, "rq-core"))


def sources() -> Mapping[str, str]:
    """The packages' modules, whole, and the names of the tests as words, by where they stand."""
    said = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in ("rq_core", "sql_audit")
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names = _TEST.findall(path.read_text(encoding="utf-8"))
        said[str(path.relative_to(ROOT))] = "\n".join(names).replace("_", " ")
    return said


def _helps(group: click.Group, path: str) -> Iterator[tuple[str, str]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        options = (each.help or "" for each in command.params if isinstance(each, click.Option))
        yield f"{path} {name} --help", "\n".join([command.help or "", *options])
        if isinstance(command, click.Group):
            yield from _helps(command, f"{path} {name}")


def main() -> int:
    """Check all texts. Returns the exit status."""
    problems = [f"{place}: {found}" for place, text in texts().items() for found in found_in(text)]
    problems += [
        f"{place}: {found}"
        for place, text in sources().items()
        for found in found_in(text, PATTERNS)
    ]
    problems += [f"words.RIGHT: there is no page {name}" for name in RIGHT if not _there(name)]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def _there(name: str) -> bool:
    return Path(ROOT / "docs" / name).is_file()


if __name__ == "__main__":
    sys.exit(main())
