"""Reports about a window of time. A report counts the claims that ended in the window, and reads no other rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from scripts.measure.once import ten_million
from sql_audit.mirror.turn import Mirror
from sql_audit.queries import reports, window
from sql_audit.queries.reports import Report
from sql_audit.store.connection.database import Database
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamWriter, enqueue


@pytest.fixture
def long_log(database: Database) -> Database:
    ten_million.build(database, 8_000)
    return database


@pytest.mark.slow
def test_a_report_within_a_window_counts_the_claims_that_ended_in_it(long_log: Database) -> None:
    """Compares the report with counts over all claims."""
    ends = auditlog.one(long_log, "SELECT MIN(at_ms) AS a, MAX(at_ms) AS z FROM job_event")
    since = ends["a"] + (ends["z"] - ends["a"]) // 3
    until = ends["a"] + (ends["z"] - ends["a"]) // 2
    claims = auditlog.rows(
        long_log,
        "SELECT task, job_id, outcome, ran_ms FROM job_attempt "
        "WHERE ended_at_ms >= :since AND ended_at_ms < :until",
        since=since,
        until=until,
    )
    expected = Counter((row["task"], row["outcome"]) for row in claims)

    found = window.report_within(long_log.readers, since_ms=since, until_ms=until)

    assert len(claims) > 100
    counted = {
        (task.task, outcome): number
        for task in found.tasks
        for outcome, number in (
            ("succeeded", task.succeeded), ("retried", task.retries),
            ("lease_expired", task.lease_expired), ("rolled_back", task.rolled_back),
        )
        if number
    }  # fmt: skip
    assert counted == {
        key: n
        for key, n in expected.items()
        if key[1] in ("succeeded", "retried", "lease_expired", "rolled_back")
    }
    assert found.claims == len(claims)
    assert sum(task.dead for task in found.tasks) == sum(
        n for (_, o), n in expected.items() if o == "died"
    )
    longest = max(row["ran_ms"] for row in claims if row["outcome"] == "succeeded")
    assert found.slowest[0].ran_ms == longest


def test_a_report_about_a_window_that_covers_the_whole_log_equals_the_full_report(
    long_log: Database,
) -> None:
    """Compares all counts except those of jobs without an ended claim."""
    whole = reports.report(long_log.readers)
    found = window.report_within(long_log.readers)

    for one, other in zip(whole.tasks, found.tasks, strict=True):
        assert (one.task, one.succeeded, one.retries, one.dead) == (
            other.task, other.succeeded, other.retries, other.dead,
        )  # fmt: skip
        assert one.ran_p95_ms == other.ran_p95_ms
    assert whole.slowest == found.slowest


STEPS_MAX = 250
"""The highest number of steps of SQLite's machine for each claim that a report reads. Measured: 160 and 130. A sort of
the claims took 340 to 360."""


@pytest.mark.parametrize("ask", [window.report_within, reports.report], ids=["window", "whole"])
def test_a_report_does_not_sort_claims(long_log: Database, ask: Callable[..., Report]) -> None:
    """Checks a report's number of steps. In a log of 7.7 million events, a sort for one day took 9 s."""
    steps = 0

    def note() -> None:
        nonlocal steps
        steps += 100

    with long_log.readers.connect() as connection:
        driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(note, 100)
    claims = ask(long_log.readers).claims

    assert 1 < steps / claims < STEPS_MAX


@pytest.mark.parametrize("number", [1, 2, 19, 20, 21, 100])
def test_percentiles_are_computed_with_the_nearest_rank_method(number: int) -> None:
    rows = [("q", None, ms, 1) for ms in range(1, number + 1)]
    twice = [("q", None, ms, 2) for ms in range(1, number + 1)]

    expected = tuple(math.ceil(number * percent / 100) for percent in (50, 95))

    assert reports.percentiles(rows) == {("q", None): expected}
    assert reports.percentiles([*twice, ("q", "t", 7, 3)]) == {
        ("q", None): expected,
        ("q", "t"): (7, 7),
    }


def test_a_report_within_a_window_counts_jobs_that_ended_without_a_claim(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    enqueue(writer, "a", "b", "c")
    writer.now_ms += 1_000
    since = writer.now_ms
    writer.jobs("cancelled", ["a", None])
    fence = writer.jobs("claimed", ["b", 1])
    writer.jobs("cancel_requested", ["b", fence])
    writer.jobs("cancelled", ["b", fence])
    auditlog.drain(mirror)

    (inside,) = window.report_within(database.readers, QUEUE, since_ms=since).tasks
    before = window.report_within(database.readers, QUEUE, until_ms=since)

    assert (inside.jobs, inside.cancelled, inside.claims) == (2, 2, 1)
    assert before.tasks == []
