"""Commands in documents and messages that people should type. Each command exists, with its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from rq_core.cli.root import root

ROOT = Path(__file__).parents[2]
TEXTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "sql_audit").glob("*.md")]
    + [path for package in ("rq_core", "sql_audit") for path in (ROOT / package).rglob("*.py")]
)
SPOKEN = re.compile(r"(`?)rq-core ((?:[^`\"\n#·|&…]|\n(?!\n))+)")
"""Matches a command in a text, up to the end of the command's words. If a backtick precedes the command, the match is
certainly a command."""


def commands(text: str) -> Iterator[str]:
    names = root.list_commands(click.Context(root))
    for quoted, words in SPOKEN.findall(text):
        line = " ".join(words.split()) if quoted else words.partition("\n")[0]
        first = line.split(" ", 1)[0].rstrip(".,:")
        if (quoted and re.fullmatch("[a-z]+", first)) or first in names:
            yield line


def wrong(line: str) -> str | None:
    """Return the first command or option of this line that does not exist, as a message, or None."""
    context = click.Context(root)
    command: click.Command = root
    words = line.split()
    while words and isinstance(command, click.Group) and re.match("[a-z]", words[0]):
        name = words.pop(0).rstrip(".,:")
        found = command.get_command(context, name)
        if found is None:
            return f"no command {name!r}"
        command = found
    options = {name for each in command.params for name in each.opts} | {"--help"}
    given = re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words))
    return next((f"no option {name}" for name in given if name not in options), None)


def test_every_command_that_a_message_quotes_exists() -> None:
    told = [(path, line) for path in TEXTS for line in commands(path.read_text())]

    assert len(told) > 100
    assert [(str(path), line, wrong(line)) for path, line in told if wrong(line)] == []


def test_the_check_of_quoted_commands_finds_an_unknown_command() -> None:
    text = (
        'say `rq-core audit up`, or f"  rq-core server stop --directory {place}"; rq-core has none'
    )

    assert [(line, wrong(line)) for line in commands(text)] == [
        ("audit up", "no command 'up'"),
        ("server stop --directory {place}", "no option --directory"),
    ]
