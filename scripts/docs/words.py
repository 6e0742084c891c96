"""Holds the pages, the errors and the command line's help to the words that readers understand at first sight.

python -m scripts.docs.words    exit 1 if a text that users read has one of the patterns
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

PATTERNS: Final = {
    r"\b(?:that|which|what|who) (?:is|are) (?:none|no \w+)\b": "write 'an invalid …'",
    r"\b(?:somebody|someone)\b": "name the actor: producer, worker, mirror, operator",
    r"\bwhoever\b": "name the actor: producer, worker, mirror, operator",
    r"\banew\b": "write 'again'",
    r"\baudit trail\b": "the word is 'audit log'",
}
"""What a text must not say, and what to write. Code is left out."""

RIGHT: Final = {
    "mutants.md": "written by scripts/prove/mutants, which quotes the tests",
    "reference/api.md": "generated from docstrings, where None is a value",
}
"""Pages that are not checked, each with the reason."""
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def found_in(text: str) -> Iterator[str]:
    """Yield each phrase of the text that a pattern finds, with what to write in its place."""
    prose = _CODE.sub("", text)
    for pattern, instead in PATTERNS.items():
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
    said |= {
        name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "SECURITY.md")
    }
    said |= {
        f"errors.{name}": inspect.getdoc(kind) or ""
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
    }
    return said | dict(_helps(root, "rq-core"))


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
    problems += [f"words.RIGHT: there is no page {name}" for name in RIGHT if not _there(name)]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def _there(name: str) -> bool:
    return Path(ROOT / "docs" / name).is_file()


if __name__ == "__main__":
    sys.exit(main())
