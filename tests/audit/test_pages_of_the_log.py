"""Pages of ended claims and of events. A row is on exactly one page, and a page reads a bounded number of rows.

No statement scans a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from scripts.measure.once import ten_million
from sql_audit.queries import ended_claims as claims
from sql_audit.queries import event_pages
from sql_audit.queries.ended_claims import FAILED, Ended, Place, Wanted
from sql_audit.queries.event_pages import END
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import OUTCOMES
from tests.kit import auditlog

EVENTS = 6_000
ENDED_OF_MAIL = (
    "SELECT COUNT(*) AS n FROM job_attempt WHERE ended_at_ms IS NOT NULL AND queue = 'mail'"
)


@pytest.fixture
def long_log(database: Database) -> Database:
    ten_million.build(database, EVENTS)
    return database


def all_pages(database: Database, wanted: Wanted, **options: Any) -> list[Ended]:
    """Return all pages of a list, from the first to the last."""
    pages = [claims.ended_claims(database.readers, wanted, **options)]
    while pages[-1].next is not None:
        assert len(pages) < 1_000
        found = claims.ended_claims(database.readers, wanted, after=pages[-1].next, **options)
        pages.append(found)
    return pages


def keys(rows: list[dict[str, Any]]) -> list[Place]:
    return [Place(r["ended_at_ms"], r["job_id"], r["fence"], r["queue"]) for r in rows]


WANTED = [
    (Wanted(), "outcome <> 'succeeded'"),
    (Wanted(task="send"), "outcome <> 'succeeded' AND task = 'send'"),
    (Wanted(("died", "retried"), "mail"), "outcome IN ('died', 'retried') AND queue = 'mail'"),
    (Wanted(OUTCOMES, "mail"), "queue = 'mail'"),
    (Wanted(("succeeded",), "mail"), "outcome = 'succeeded' AND queue = 'mail'"),
    (
        Wanted(OUTCOMES, "mail", since_ms=1, until_ms=2),
        "queue = 'mail' AND ended_at_ms >= :since AND ended_at_ms < :until",
    ),
]


@pytest.mark.slow
def test_pages_of_ended_claims_have_each_claim_once(
    long_log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "FIRST_STEP", 3)
    monkeypatch.setattr(claims, "STEP", 29)
    ends = auditlog.one(
        long_log, "SELECT MIN(ended_at_ms) AS a, MAX(ended_at_ms) AS z FROM job_attempt"
    )
    since = ends["a"] + (ends["z"] - ends["a"]) // 3
    until = ends["a"] + (ends["z"] - ends["a"]) // 2

    for conditions, condition in WANTED:
        wanted = conditions
        if wanted.until_ms is not None:
            wanted = replace(wanted, since_ms=since, until_ms=until)
        times = {"since": since, "until": until} if ":since" in condition else {}
        expected = auditlog.rows(
            long_log,
            "SELECT job_id, fence, queue, ended_at_ms FROM job_attempt "
            f"WHERE ended_at_ms IS NOT NULL AND {condition}",
            **times,
        )

        pages = all_pages(long_log, wanted, limit=41)

        found = [key for page in pages for key in keys(page.rows)]
        assert found == sorted(keys(expected), reverse=True), condition
        assert len(found) > 5
        assert all(len(page.rows) == 41 for page in pages[:-1])


def test_claims_that_end_in_one_millisecond_are_not_lost_between_pages(long_log: Database) -> None:
    with long_log.writing() as connection:
        assert connection is not None
        connection.exec_driver_sql(
            "UPDATE job_attempt SET ended_at_ms = 1800000000000 WHERE ended_at_ms IS NOT NULL"
        )
        connection.commit()

    pages = all_pages(long_log, Wanted(OUTCOMES, "mail"), limit=97)

    found = [key for page in pages for key in keys(page.rows)]
    number = auditlog.one(long_log, ENDED_OF_MAIL)["n"]
    assert len(found) == len(set(found)) == number > 500


def test_a_page_without_matches_says_how_far_back_it_read(
    long_log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOOKED_MAX", 400)
    number = auditlog.one(long_log, ENDED_OF_MAIL)["n"]

    pages = all_pages(long_log, Wanted(OUTCOMES, "mail", worker="nobody"), clock=lambda: 0.0)

    assert [page.rows for page in pages] == [[]] * len(pages)
    # The first step of each part is read in any case.
    assert all(0 < page.looked <= 400 + claims.STEP for page in pages)
    assert number / (400 + claims.STEP) <= len(pages) < number / 20
    places = [page.next for page in pages if page.next is not None]
    assert all(after < before for before, after in pairwise(places))


def test_a_page_ends_when_its_time_limit_has_passed(long_log: Database) -> None:
    """Checks a slow database. Every page gets further back than the page before."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    pages = all_pages(long_log, Wanted(OUTCOMES, "mail", worker="nobody"), clock=clock)

    assert all(page.looked <= 7 * claims.FIRST_STEP for page in pages)
    assert pages[0].next is not None


def test_a_search_for_successes_needs_a_queue(database: Database) -> None:
    with pytest.raises(ValueError, match="by queue"):
        claims.ended_claims(database.readers, Wanted(OUTCOMES))


# Events.


def test_pages_of_events_can_be_read_forward_and_backward(long_log: Database) -> None:
    expected = [
        (r["epoch"], r["seq"], r["ordinal"])
        for r in auditlog.rows(
            long_log,
            "SELECT epoch, seq, ordinal FROM job_event WHERE queue = 'mail' ORDER BY epoch, seq, ordinal",
        )
    ]
    page = event_pages.page_before(long_log.readers, "mail", END, 500)
    back = [page]
    while page.older:
        page = event_pages.page_before(long_log.readers, "mail", page.events[0].place, 500)
        back.append(page)
    page = event_pages.page_after(long_log.readers, "mail", (0, 0, 0), 500)
    forth = [page]
    while page.newer:
        page = event_pages.page_after(long_log.readers, "mail", page.events[-1].place, 500)
        forth.append(page)

    assert [e.place for each in reversed(back) for e in each.events] == expected
    assert [e.place for each in forth for e in each.events] == expected
    assert [each.newer for each in back[:2]] == [False, True]
    assert [each.older for each in forth[:2]] == [False, True]


QUESTIONS: dict[str, Callable[[Database], object]] = {
    "failed": lambda d: claims.ended_claims(d.readers, Wanted(FAILED)),
    "failed, next page": lambda d: claims.ended_claims(
        d.readers,
        Wanted(FAILED, since_ms=5, until_ms=2**60),
        after=Place(2**50, "a", "1-1", "mail"),
    ),
    "all of a queue": lambda d: claims.ended_claims(d.readers, Wanted(OUTCOMES, "mail")),
    "all of a queue, next page": lambda d: claims.ended_claims(
        d.readers, Wanted(OUTCOMES, "mail", until_ms=2**60), after=Place(2**50, "a", "1-1", "mail")
    ),
    "events": lambda d: event_pages.page_before(d.readers, "mail", END, 100),
    "events after": lambda d: event_pages.page_after(d.readers, "mail", (0, 0, 0), 100),
    "events of a job": lambda d: event_pages.job_page_before(d.readers, "j", "mail", END, 100),
    "instants": lambda d: event_pages.last_ticks(d.readers, "mail"),
}


INDEX_OF = {
    "failed": ("job_attempt_failed", ""),
    "all": ("job_attempt_span", ""),
    "events": ("PRIMARY KEY", "_pkey"),
    "events of a job": ("job_event_job", "_job_id_queue_epoch_seq_idx"),
    "instants": ("job_event_tick", "_queue_case_at_ms_idx"),
}
"""The index that each statement uses, on SQLite and in PostgreSQL's partitions of job_event."""


def test_no_query_of_a_page_scans_a_large_table(long_log: Database) -> None:
    for name, ask in QUESTIONS.items():
        question = ten_million.Question(name, ask)

        plans = ten_million.plans_of(long_log, question, no_scans=True)

        assert plans, name
        assert ten_million.full_scans(long_log, plans) == []
        index, partitioned = INDEX_OF.get(name) or INDEX_OF[name.replace(",", "").split()[0]]
        wanted = index if long_log.dialect == "sqlite" or not partitioned else partitioned
        for plan in plans:
            assert any(wanted in line for line in plan), (name, plan)


def test_the_last_instants_of_schedules_are_read_without_reading_other_events(
    long_log: Database,
) -> None:
    """Checks that the index is used. By the primary key, SQLite read ten million events in 3.5 s."""
    question = ten_million.Question("instants", QUESTIONS["instants"])

    plans = ten_million.plans_of(long_log, question, no_scans=True)

    by_key = [line for plan in plans for line in plan if "PRIMARY KEY" in line or "_pkey" in line]
    assert by_key == []
