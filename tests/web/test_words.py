"""Words, times and addresses that the pages read or write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rq_core.errors import InvalidOption
from rq_core.web.search import parse_moment
from rq_core.web.words import brief_span, iso, items, job_path, plain, query, queue_path, word

NOW_MS = 1_800_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.mark.parametrize(
    "text, ms",
    [("1800000000001", NOW_MS + 1), ("now", NOW_MS), ("10m ago", NOW_MS - 600_000), ("2h", NOW_MS - 7_200_000),
     ("2027-01-15 08:00", NOW_MS), ("2027-01-15T08:00:00.000Z", NOW_MS), ("2027-01-15 08:00:00 UTC", NOW_MS),
     ("2027-01-15T09:00+01:00", NOW_MS), ("999999d ago", 0)],
)  # fmt: skip
def test_parse_moment_reads_each_form_of_a_moment(text: str, ms: int) -> None:
    assert parse_moment(text, NOW) == ms


@pytest.mark.parametrize(
    "text, ms",
    [
        ("12:03", 1_799_928_180_000),
        ("today 00:00", 1_799_971_200_000),
        ("yesterday 12:03", 1_799_928_180_000),
        ("yesterday 23:59:59", 1_799_971_199_000),
        ("7:59:59", 1_799_999_999_000),
        ("08:00", 1_800_000_000_000),
        ("08:01", 1_799_913_660_000),
    ],
)
def test_a_time_of_day_means_the_last_time_that_has_passed(text: str, ms: int) -> None:
    """Checks times of day on a Friday at 08:00 UTC."""
    assert parse_moment(text, NOW) == ms


@pytest.mark.parametrize(
    "text", ["yesterday", "10", "1" * 16, "-5", "10 m ago ago", "2027-13-01", "m", ""]
)
def test_parse_moment_refuses_invalid_texts(text: str) -> None:
    if text == "10":
        assert parse_moment(text, NOW) == 10
        return
    with pytest.raises(InvalidOption):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    "queue, path",
    [("mail", "/queues/mail"), ("a:b", "/queues/a:b"), ("..", "/queue?queue=.."), (".", "/queue?queue=."),
     ("a.json", "/queue?queue=a.json"), ("a/b", "/queue?queue=a%2Fb"), ("<x>", "/queue?queue=%3Cx%3E")],
)  # fmt: skip
def test_the_path_of_a_queue_is_encoded_so_that_no_browser_changes_the_path(
    queue: str, path: str
) -> None:
    assert queue_path(queue) == path


def test_the_path_of_a_job_is_encoded_so_that_no_browser_changes_the_path() -> None:
    assert job_path("mail", "a") == "/jobs/mail/a"
    assert job_path("mail", "..") == "/job?queue=mail&id=.."
    assert query("/at", t=None, queue="") == "/at"


def test_control_characters_of_a_text_are_escaped_but_its_line_breaks_stay() -> None:
    assert plain("a\n\tb") == "a\n\tb"
    assert plain("\x1b[1m\u202eé") == "\\x1b[1m\\u202eé"
    assert word("a\n b  c") == "a b c"
    assert word("redis://:pw@host") == "redis://:***@host"
    assert len(word("x" * 10_000_000)) < 400


def test_lists_in_markdown_become_list_items() -> None:
    assert items("- Start `a b`\n  now.\n- Or\n") == [
        [(False, "Start "), (True, "a b"), (False, " now.")], [(False, "Or")]
    ]  # fmt: skip


def test_the_functions_iso_and_brief_span_return_times_and_durations_as_text() -> None:
    assert iso(NOW_MS) == "2027-01-15T08:00:00.000Z"
    assert iso(10**20) == iso(None) == ""
    assert (brief_span(7), brief_span(61_000)) == ("7 ms", "1 min 1 s")
