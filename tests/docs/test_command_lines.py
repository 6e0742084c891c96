"""Command lines in the docs, on the web page and in messages. The commands and options exist, a command takes as many
arguments, and the name of a queue or the id of a job is where the command takes one. Other values are not
checked."""

import ast
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
_SOURCES = sorted(path for room in ("rq_core", "sql_audit") for path in (ROOT / room).rglob("*.py"))
_TEMPLATES = sorted((ROOT / "rq_core/web/templates").glob("*.html"))
_MAYBE = re.compile(r"`rq-core |\"rq-core [a-z-]+ \{")
"""Matches somewhere in each module whose messages show command lines."""
_SHOWN = re.compile(r"`{1,2}(rq-core [^`]+)`|^(rq-core (?:[\w= -]|\{[^{}]*\})+)$")
_FIELD = re.compile(r"\{+ *([^{}]*?) *\}+")
_MEANT = {"queue": "QUEUE", "id": "ID", "job_id": "ID", "scope": "SCOPE", "url": "URL"}
"""The last name of an expression that a command line contains, with the argument that it stands for."""
_KINDS = {"QUEUE": {"QUEUE", "NAME", "A"}, "ID": {"ID", "JOB"}, "SCOPE": {"SCOPE"}, "URL": {"URL"}}
"""Kind of a word in a command line → first words of the metavars that take it."""
_UNKNOWN = re.compile(r"rq-core (?:audit )?VALUE|\\")
"""Matches a line whose command is an expression, and a pattern of command lines."""


def command_lines(text: str) -> Iterator[str]:
    """Yield the command lines of a page, from code blocks and sentences, without comments and what two spaces part."""
    lines = [line for block in _FENCE.findall(text) for line in _LINE.findall(block)]
    for line in [*lines, *_INLINE.findall(_FENCE.sub("", text))]:
        if not _SHAPE.search(line):
            yield from re.split(r" #| {2,}", line)[0].strip().split(" && ")


def problem_of(line: str) -> str | None:
    """Return what is wrong with a command line, as a message, or None: the first command or option that does not exist,
    or the first argument that the command does not take there."""
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
    options = {
        name: each
        for each in group.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
    }
    arguments = [each for each in group.params if isinstance(each, click.Argument)]
    while words:
        word = words.pop(0)
        name, _, given = word.partition("=")
        if re.match(r"--?[A-Za-z]", name):
            option = options.get(name)
            if option is None and name not in ("--help", "-h", "--version"):
                return f"{group.name} has no option {name}"
            if option is None or option.is_flag or option.count:
                continue
            place: click.Parameter = option
            word = given or (words.pop(0) if words else "")
        elif not arguments:
            return None if isinstance(group, click.Group) else f"{group.name} does not take {word}"
        else:
            place = arguments[0] if arguments[0].nargs == -1 else arguments.pop(0)
        taken = re.findall(r"[A-Z]+", place.make_metavar(context))[:1]
        if word in _KINDS and not _KINDS[word].intersection(taken):
            return f"{group.name} does not take {word} there"
    return None


def texts_of(source: str) -> Iterator[str]:
    """Yield the texts in the code of a module, with each expression of an f-string in braces."""
    tree = ast.parse(source)
    parts = {
        id(part)
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr)
        for part in each.values
    }
    for each in ast.walk(tree):
        if isinstance(each, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[attr-defined, misc]
                for part in each.values
            )
        elif (
            isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in parts
        ):
            yield each.value


def meant(line: str) -> str:
    """Return a command line of a message or a template, with what its expressions stand for in their place."""

    def word(field: re.Match[str]) -> str:
        name = re.split(r"\W", field[1])[-1]
        return _MEANT.get(name, "VALUE")

    return _FIELD.sub(word, line)


def shown_by(source: Path) -> Iterator[str]:
    """Yield the command lines that a module's messages or a template of the web page show."""
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".html":
        lines = re.findall(r"<code>(rq-core [^<]*)</code>", text)
    elif not _MAYBE.search(text):
        return
    else:
        found = (_SHOWN.finditer(" ".join(each.split())) for each in texts_of(text))
        lines = [match[1] or match[2] for each in found for match in each]
    for line in map(meant, lines):
        if not _SHAPE.search(line) and not _UNKNOWN.search(line):
            yield line


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


def test_the_check_of_command_lines_finds_a_queue_in_the_place_of_a_job(tmp_path: Path) -> None:
    page, module = tmp_path / "job.html", tmp_path / "says.py"
    page.write_text("<code>rq-core requeue {{ doc.queue }} {{ doc.id }}</code>")
    module.write_text(
        'f"run `rq-core requeue {job_id} -q {queue}`, or"\nf"`rq-core audit restore {queue}`"'
    )

    assert [problem_of(line) for line in shown_by(page)] == ["requeue does not take QUEUE there"]
    assert [(line, problem_of(line)) for line in shown_by(module)] == [
        ("rq-core requeue ID -q QUEUE", None),
        ("rq-core audit restore QUEUE", "restore does not take QUEUE"),
    ]


def test_the_command_lines_that_the_web_page_and_messages_show_exist() -> None:
    lines = {path: list(shown_by(path)) for path in [*_TEMPLATES, *_SOURCES]}
    said = [(path.name, line, problem_of(line)) for path, found in lines.items() for line in found]

    assert [] == [each for each in said if each[2]]
    assert "rq-core requeue ID -q QUEUE" in lines[ROOT / "rq_core/web/templates/job.html"]
