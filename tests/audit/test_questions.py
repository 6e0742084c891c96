"""The web page's questions to the log. The answer equals the command's answer, on both databases, within a time
limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from rq_core.errors import RqCoreError
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.queries import history, moments, questions, waits
from sql_audit.queries.questions import EVENTS_MAX, LogQuestions, bound
from sql_audit.store.connection.database import Database
from tests.kit.auditlog import drain
from tests.kit.seed import Seed

QUEUE = "mail"


@pytest.fixture
def mirrored(valkey_url: str, database: Database) -> Iterator[Seed]:
    """Mirror a queue with four jobs: one succeeded, one dead, one running, and one that waits for its cap."""
    with Seed(valkey_url, QUEUE, real_clock=True) as seed:
        seed.complete(seed.running("done"))
        seed.fail(seed.running("died"), verdict="final")
        seed.cap("tenant", 1)
        seed.enqueue(seed.job("holds", priority="critical", scopes=["tenant=acme"]))
        seed.claim_one("holds")
        seed.enqueue(seed.job("waits", scopes=["tenant=acme"]))
        drain(Mirror(Outbox(seed.client), database, QUEUE))
        yield seed


@pytest.fixture
def asks(mirrored: Seed, audit_url: str) -> Iterator[LogQuestions]:
    with contextlib.closing(questions.open_questions(audit_url)) as opened:
        yield opened


def test_the_web_page_and_the_commands_return_the_same_events_waits_and_claims(
    asks: LogQuestions, database: Database
) -> None:
    engine, now = database.readers, int(time.time() * 1000)

    events = history.history(engine, "done", QUEUE)
    assert asks.history("done", QUEUE)["events"] == [dataclasses.asdict(e) for e in events]
    (why,) = waits.why(engine, "waits", QUEUE)
    assert asks.why("waits", QUEUE) == dataclasses.asdict(why)
    at = asks.at(QUEUE, now)
    assert at["running"] == [dataclasses.asdict(e) for e in moments.at(engine, QUEUE, now).running]
    assert at["scopes"] == {"tenant=acme": {"cap": 1, "holders": ["holds"]}}
    assert [e["job_id"] for e in asks.tail([QUEUE], 2)] == ["holds", "waits"]


def test_the_counts_per_minute_and_per_error_are_returned_as_numbers(asks: LogQuestions) -> None:
    now = int(time.time() * 1000)

    minutes = asks.minutes(now - 600_000, now + 600_000, None)
    errors = asks.errors(now - 600_000, QUEUE)

    assert {(m["outcome"], m["claims"]) for m in minutes} == {("succeeded", 1), ("died", 1)}
    assert [(e["error_type"], e["outcome"], e["claims"]) for e in errors] == [
        ("ValueError", "died", 1)
    ]
    assert json.loads(json.dumps([minutes, errors]))
    assert asks.minutes(now - 600_000, now + 600_000, "other") == []
    assert asks.errors(now + 600_000, None) == []


def test_a_complete_log_has_no_findings(asks: LogQuestions) -> None:
    assert asks.findings() == {
        "losses": [], "gaps": [], "quarantine": [], "proofs": [], "prunes": []
    }  # fmt: skip


def test_an_unknown_job_has_no_history(asks: LogQuestions) -> None:
    found = asks.history("never", QUEUE)

    assert found["events"] == []
    assert "knows no job 'never'" in found["notes"][0]
    assert asks.why("never", QUEUE) is None


def test_a_long_history_is_read_in_pages_from_its_end(
    mirrored: Seed, asks: LogQuestions, database: Database
) -> None:
    claim = mirrored.running("often")
    for _ in range(EVENTS_MAX // 2 + 5):
        mirrored.rollback(claim, reason="shutdown")
        claim = mirrored.claim_one("often")
    drain(Mirror(Outbox(mirrored.client), database, QUEUE))

    found = asks.history("often", QUEUE)

    assert len(found["events"]) == EVENTS_MAX
    assert found["events"][-1]["type"] == "claimed"
    assert (found["older"], found["newer"]) == (True, False)

    first = found["events"][0]
    before = asks.history("often", QUEUE, before=(first["epoch"], first["seq"], first["ordinal"]))
    whole = history.history(database.readers, "often", QUEUE)
    assert (before["older"], before["newer"]) == (False, True)
    assert before["events"] + found["events"] == [dataclasses.asdict(e) for e in whole]


def test_a_slow_statement_is_ended_at_its_time_limit(database: Database, audit_url: str) -> None:
    own = Database(audit_url)
    bound(own.readers, 200)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    )
    began = time.monotonic()

    with pytest.raises(OperationalError), own.readers.connect() as connection:
        connection.execute(text(endless)).all()

    assert time.monotonic() - began < 5
    with own.readers.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    own.close()


@pytest.mark.slow
@pytest.mark.parametrize("audit_url", ["postgresql"], indirect=True)
def test_a_locked_table_causes_an_error_within_the_time_limit(
    asks: LogQuestions, database: Database
) -> None:
    """Checks only PostgreSQL, where another session may lock a table for hours. SQLite's readers never wait for
    writers.
    """
    asks.minutes(0, 1, None)
    with database.writing() as lock:
        assert lock is not None
        lock.exec_driver_sql("LOCK TABLE claim_minute, job_event")
        began = time.monotonic()

        with pytest.raises(RqCoreError):
            asks.minutes(0, 1, None)

        assert time.monotonic() - began < 10 * questions.STATEMENT_MS / 1000


def test_a_query_on_a_database_without_an_audit_log_raises_an_error(sqlite_url: str) -> None:
    with (
        contextlib.closing(questions.open_questions(sqlite_url)) as opened,
        pytest.raises(RqCoreError),
    ):
        opened.findings()
