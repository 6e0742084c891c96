"""Command lines on pages. The commands and options exist. Arguments and values of options are not checked."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rq_core.cli.commands.web import WebGroup
from rq_core.cli.root import root
from tests.docs.transcript import DOCS

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(rq-core [^`\n]+)`")
_LINE = re.compile(r"^ *(?:\$ |ExecStart=\S*/)?(rq-core .*)$", re.MULTILINE)
_SHAPE = re.compile(r"[|…·\[\]{}]|\.\.\.")
"""Matches a line that shows only the form of a command: a line with alternatives, or with an omission."""


def command_lines(text: str) -> Iterator[str]:
    """Yield the command lines of a page, from code blocks and sentences, without comments."""
    lines = [line for block in _FENCE.findall(text) for line in _LINE.findall(block)]
    for line in [*lines, *_INLINE.findall(_FENCE.sub("", text))]:
        if not _SHAPE.search(line):
            yield from line.partition(" #")[0].strip().split(" && ")


def problem_of(line: str) -> str | None:
    """Return the first command or option that does not exist in a command line, as a message, or None."""
    words = shlex.split(line)[1:]
    group: click.Command = root
    context = click.Context(root, info_name="rq-core")
    while words and isinstance(group, click.Group) and not words[0].startswith("-"):
        found = group.get_command(context, words[0])
        if found is None:
            return f"there is no command {words[0]}"
        group, words = found, words[1:]
        context = click.Context(group, info_name=group.name, parent=context)
    if isinstance(group, WebGroup):
        group = group.commands[group.default]
    # A page names a command without what it needs, but not with what it does not know.
    needed = [p for p in group.params if isinstance(p, click.Option)]
    known = {name for option in needed for name in (*option.opts, *option.secondary_opts)}
    known |= {"--help", "-h", "--version"}
    for word in words:
        name = word.partition("=")[0]
        if re.match(r"--?[A-Za-z]", name) and name not in known:
            return f"{group.name} has no option {name}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_lines_on_the_pages_exist(page: Path) -> None:
    lines = command_lines(page.read_text(encoding="utf-8"))

    assert [] == [f"{line}: {said}" for line in lines if (said := problem_of(line))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_of_a_page_has_a_complete_fence(page: Path) -> None:
    """Checks that no fence has only two backticks. Such a fence would turn the lines of a block into a paragraph."""
    lines = page.read_text(encoding="utf-8").splitlines()

    assert [] == [line for line in lines if re.match(r" *``(?!`)", line)]
    assert sum(line.lstrip().startswith("```") for line in lines) % 2 == 0


def test_the_check_of_command_lines_finds_invalid_command_lines() -> None:
    page = (
        "`rq-core jobs mail --state ready` and `rq-core cap QUEUE SCOPE N|none`\n"
        "```text\nrq-core dead mail   # why\n$ rq-core audit histroy x\n```\n`rq-core jobs mail --sort age`\n"
    )
    lines = list(command_lines(page))

    assert lines == [
        "rq-core dead mail",
        "rq-core audit histroy x",
        "rq-core jobs mail --state ready",
        "rq-core jobs mail --sort age",
    ]
    assert [problem_of(line) for line in lines] == [
        None, "there is no command histroy", None, "jobs has no option --sort",
    ]  # fmt: skip
