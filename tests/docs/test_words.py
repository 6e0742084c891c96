"""What users read has none of the phrases that have to be read twice."""

import pytest

from scripts.docs import words


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
