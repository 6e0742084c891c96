"""The check of words, which finds phrases that a reader must read twice."""

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
        "Nobody claims.",
        "A claim does what is due for everyone.",
        "That which was lost comes back.",
    ],
)
def test_the_check_of_words_finds_a_phrase_that_readers_stumble_over(text: str) -> None:
    assert 1 == len(list(words.found_in(text)))


GLOSSARY = """# Glossary

One word for each idea. The words after "Not:" are ruled out.

**Audit log.** The events in SQL. Not: audit trail.

**Job.** One call of a task.

**Result.** What a handler returned. Not: kept
value, return value.
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The audit trail is complete.", ["'audit trail': the word is 'audit log'"]),
        ("Kept\nvalues expire.", ["'Kept\\nvalues': the word is 'result'"]),
        ("Its return value, a job.", ["'return value': the word is 'result'"]),
        ("The audit log has each result.", []),
        ("It trails behind: keep values, return `return value`.", []),
    ],
)
def test_the_check_of_words_finds_a_word_that_the_glossary_rules_out(
    text: str, found: list[str]
) -> None:
    assert found == list(words.found_in(text, words.synonyms(GLOSSARY)))


def test_the_glossary_rules_out_synonyms_of_its_terms() -> None:
    meant = set(words.synonyms((words.ROOT / words.GLOSSARY).read_text()).values())

    assert {"the word is 'result'", "the word is 'outcome'", "the word is 'scope'"} <= meant


def test_the_glossary_may_contain_the_synonyms_that_it_rules_out() -> None:
    page = words.texts()[words.GLOSSARY]

    assert "**Result.**" in page
    assert [] == list(
        words.found_in(page, words.synonyms((words.ROOT / words.GLOSSARY).read_text()))
    )


def test_a_synonym_on_a_page_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(words, "texts", lambda: {"a page": "The audit trail."})
    monkeypatch.setattr(words, "problems_in_sources", list)

    assert 1 == words.main()
    assert "a page: 'audit trail': the word is 'audit log'\n" == capsys.readouterr().err


def test_the_glossary_is_in_alphabetical_order() -> None:
    page = (words.ROOT / words.GLOSSARY).read_text()
    entries = [line.partition(".**")[0].lower() for line in page.splitlines() if ".**" in line]

    assert len(entries) > 30
    assert sorted(entries) == entries


def test_the_check_of_words_ignores_code() -> None:
    assert [] == list(words.found_in("`whoever`\n```\nsomebody\n```\nAn operator trims."))


def test_the_check_of_words_covers_pages_errors_and_help() -> None:
    said = words.texts()

    assert {
        "docs/glossary.md",
        "README.md",
        "errors.QueueFull",
        "rq-core audit head --help",
    } <= said.keys()


SOURCE = '''"""What no worker has told."""

LIMIT = 1  # It stands in meta.


def fail(name: str) -> None:
    """Raise an error that is to be read."""
    told = f"{name} is none of the jobs"
    raise ValueError(told)
'''


def test_the_check_of_words_reads_docstrings_comments_and_messages_but_no_names_in_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "source.py").write_text(SOURCE)

    found = [problem.split(": ")[:2] for problem in words.problems_in_sources(["source.py"])]

    assert [
        ["source.py:1", "'told'"],
        ["source.py:1", "'What'"],
        ["source.py:3", "'stands'"],
        ["source.py:7", "'is to be'"],
        ["source.py:8", "'is none'"],
    ] == found


def test_the_check_of_words_covers_the_first_words_of_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    source = 'DONE = True\n"""Whether it is done."""\n\n\ndef f():\n    """Whether it ends."""\n'
    (tmp_path / "tests" / "conftest.py").write_text(f'"""What it has."""\n{source}')
    (tmp_path / "source.py").write_text(source)

    found = [
        problem.split(": ")[:2] for problem in words.problems_in_sources(["source.py", "tests"])
    ]

    assert [
        ["source.py:6", "'Whether'"],
        ["tests/conftest.py:1", "'What'"],
        ["tests/conftest.py:7", "'Whether'"],
    ] == found


def test_the_check_of_words_reads_the_names_of_tests_and_the_comments_of_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_it.py"
    test.write_text("def test_nobody_claims():\n    nobody = 1\n")
    (tmp_path / "claim.lua").write_text("local told = 1\n-- Jobs of which none runs.\n")

    found = [
        problem.split(": ")[:2] for problem in words.problems_in_sources(["claim.lua", "tests"])
    ]

    assert [["claim.lua:2", "'of which'"], [f"tests/{test.name}:1", "'nobody'"]] == found


def test_each_page_that_is_exempt_from_the_check_of_words_needs_the_exemption() -> None:
    docs = words.ROOT / "docs"

    assert [] == [
        name for name in words.RIGHT if not list(words.found_in((docs / name).read_text()))
    ]


_NOUNS = "jobs|queues|workers|events|entries|claims|tasks|names|leases|runs|connections|findings|lanes|clients"
_PLURAL = re.compile(rf" (?:\w+ )?(?:{_NOUNS})\b")
_LOGGED = re.compile(rf"%d (?:\w+ )?(?:{_NOUNS})\b")


def _plurals(path: Path) -> Iterator[str]:
    """Yield the texts of a module with a plural after a number that may be 1."""
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
    """Return whether an expression looks like a count: a length, a number with separators, or a name such as
    `count`."""
    inner = value.value
    length = isinstance(inner, ast.Call) and ast.unparse(inner.func) == "len"
    spec = ast.unparse(value.format_spec) if value.format_spec else ""
    words = ast.unparse(inner).lower()
    return length or "," in spec or words.endswith(("losses", "claimed", "most", "max", "count"))


def test_in_every_message_the_noun_agrees_with_the_number_before_it() -> None:
    """Checks that no message can have "1 jobs", "1 connections" or "1 workers"."""
    files = [*(DOCS.parent / "rq_core").rglob("*.py")]

    assert len(files) > 100
    assert [found for each in files for found in _plurals(each)] == []
