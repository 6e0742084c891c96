"""What users read has none of the phrases that have to be read twice."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.docs import words
from tests.docs.transcript import DOCS


@pytest.mark.parametrize(
    "text",
    [
        "Seconds that are none are refused.",
        "A name that is no task is refused.",
        "Somebody trimmed the outbox.",
        "The worker, whoever started it, stops.",
        "The second one begins anew.",
        "Give the audit trail up.",
        "Nobody claims.",
        "A claim does what is due for everyone.",
        "That which was lost comes back.",
    ],
)
def test_a_phrase_that_readers_stumble_over_is_found(text: str) -> None:
    assert 1 == len(list(words.found_in(text)))


def test_code_is_left_alone() -> None:
    assert [] == list(words.found_in("`whoever`\n```\nsomebody\n```\nAn operator trims."))


def test_pages_errors_and_help_are_all_checked() -> None:
    said = words.texts()

    assert {
        "docs/glossary.md",
        "README.md",
        "errors.QueueFull",
        "rq-core audit head --help",
    } <= said.keys()
    assert words.main() == 0


def test_comments_messages_and_the_names_of_tests_are_checked_too() -> None:
    said = words.sources()

    assert "Runs worker processes" in said["rq_core/process/supervisor.py"]
    assert "test code is left alone" in said["tests/docs/test_words.py"]
    assert ["'nobody': name the actor: no worker, no operator …"] == list(
        words.found_in("test nobody claims", words.PATTERNS)
    )


def test_a_page_is_exempt_only_while_it_needs_to_be() -> None:
    docs = words.ROOT / "docs"

    assert [] == [
        name for name in words.RIGHT if not list(words.found_in((docs / name).read_text()))
    ]


_NOUNS = "jobs|queues|workers|events|entries|claims|tasks|names|leases|runs|connections|findings|lanes|clients"
_PLURAL = re.compile(rf" (?:\w+ )?(?:{_NOUNS})\b")
_LOGGED = re.compile(rf"%d (?:\w+ )?(?:{_NOUNS})\b")


def _plurals(path: Path) -> Iterator[str]:
    """Texts of a module that put a plural behind a number, whatever that number is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            for number, behind in itertools.pairwise(node.values):
                counts = isinstance(number, ast.FormattedValue) and _counts(number)
                if counts and isinstance(behind, ast.Constant) and _PLURAL.match(behind.value):
                    yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _LOGGED.search(text):
            yield f"{path.name}:{node.lineno}: {text}"


def _counts(value: ast.FormattedValue) -> bool:
    """Whether it looks like a number: a length, or one that is written with its thousands set apart."""
    inner = value.value
    length = isinstance(inner, ast.Call) and ast.unparse(inner.func) == "len"
    spec = ast.unparse(value.format_spec) if value.format_spec else ""
    words = ast.unparse(inner).lower()
    return length or "," in spec or words.endswith(("losses", "claimed", "most", "max", "count"))


def test_a_number_stands_before_a_noun_that_agrees_with_it() -> None:
    """It was "1 jobs", "1 connections" and "1 workers"."""
    files = [*(DOCS.parent / "rq_core").rglob("*.py")]

    assert len(files) > 100
    assert [found for each in files for found in _plurals(each)] == []
