"""Everyday queries of a long log. No query scans a large table, and each answer agrees with the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.measure.once import ten_million
from scripts.measure.once.long_log import LongLog
from sql_audit.mirror.projection import rebuild
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries import moments, reports
from sql_audit.store.connection.database import Database
from sql_audit.upkeep import windows
from tests.kit import auditlog

EVENTS = 40_000


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def long_log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """Yield a long log. The tests of this file only read the log, so that they can share it."""
    if request.param == "sqlite":
        url = f"sqlite:///{Path(tmp_path_factory.mktemp('long')) / 'audit.db'}"
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.url(server.create_database())
    database = Database(url)
    ten_million.build(database, EVENTS)
    yield database
    database.close()


@pytest.mark.slow
def test_no_everyday_query_scans_a_large_table(long_log: Database) -> None:
    """Checks query plans. In a log of ten million events a scan takes seconds."""
    questions = ten_million.questions(long_log)
    assert len(questions) == 4 + len(ten_million.everyday()) >= 17

    scans = {}
    for question in questions:
        plans = ten_million.plans_of(long_log, question, no_scans=True)
        assert plans, question.title
        scans[question.title] = ten_million.full_scans(long_log, plans)

    assert {title: lines for title, lines in scans.items() if lines} == {}


@pytest.mark.slow
def test_events_of_jobs_are_found_by_an_index_on_job_ids(long_log: Database) -> None:
    """Checks that the query uses the index. A scan of ten million events took 1.7 s."""

    def ask(database: Database) -> None:
        with database.readers.connect() as connection:
            rebuild.events_of(connection, "mail", ["a", "b"])

    (plan,) = ten_million.plans_of(long_log, ten_million.Question("events", ask), no_scans=True)

    by_id = (
        "INDEX job_event_job (job_id=?)" if long_log.dialect == "sqlite" else "Index Cond: ((job_id"
    )
    assert [line for line in plan if by_id in line], plan
    assert not [line for line in plan if "(queue=?)" in line]


def test_names_in_force_are_found_by_an_index_on_their_expiry(long_log: Database) -> None:
    """Checks that the query does not read the names of throttled jobs whose window has closed."""

    def ask(database: Database) -> None:
        with database.readers.connect() as connection:
            windows.names_in_force(connection, "mail", 5)

    *_, plan = ten_million.plans_of(long_log, ten_million.Question("names", ask), no_scans=True)

    by_instant = (
        "INDEX job_throttled (queue=? AND <expr>>?"
        if long_log.dialect == "sqlite"
        else "Index Cond: ((queue = 'mail'::text) AND ((substr("
    )
    assert [line for line in plan if by_instant in line], plan


def test_the_function_full_scans_reports_a_full_scan(long_log: Database) -> None:
    whole = ten_million.Question("all", lambda d: reports.report(d.readers))

    plans = ten_million.plans_of(long_log, whole, no_scans=True)

    assert ten_million.full_scans(long_log, plans) != []


@pytest.mark.slow
def test_the_generated_long_log_is_proven_by_verify(long_log: Database) -> None:
    found = verify(long_log)

    assert found.verdict is LogVerdict.HOLDS
    auditlog.assert_minutes_hold(long_log)
    kinds = {row["type"] for row in auditlog.rows(long_log, "SELECT DISTINCT type FROM job_event")}
    assert kinds >= {"enqueued", "claimed", "succeeded", "retried", "promoted", "died"}
    states = {row["state"] for row in auditlog.rows(long_log, "SELECT DISTINCT state FROM job")}
    assert states >= {"succeeded", "dead", "running"}


def test_the_jobs_that_audit_at_shows_as_running_equal_the_claims_in_force_at_that_moment(
    long_log: Database,
) -> None:
    ends = auditlog.one(long_log, "SELECT MIN(at_ms) AS a, MAX(at_ms) AS z FROM job_event")
    in_force = (
        "SELECT job_id FROM job_attempt WHERE queue = 'mail' AND claimed_at_ms <= :at "
        "AND (ended_at_ms IS NULL OR ended_at_ms > :at) ORDER BY claimed_at_ms, job_id"
    )
    compared = 0
    for part in range(1, 20):
        at_ms = ends["a"] + (ends["z"] - ends["a"]) * part // 20
        running = [row["job_id"] for row in auditlog.rows(long_log, in_force, at=at_ms)]

        assert [
            each.job_id for each in moments.at(long_log.readers, "mail", at_ms).running
        ] == running
        compared += len(running)
    assert compared > 100


def test_the_same_seed_always_generates_the_same_long_log() -> None:
    first, second = (LongLog(500, seed=7).read_outbox("mail", "-", 50) for _ in range(2))

    assert first == second != LongLog(500, seed=8).read_outbox("mail", "-", 50)
