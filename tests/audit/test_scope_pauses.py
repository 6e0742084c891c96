"""The views of pauses and their queries: who or what paused a scope, and which failures made a breaker pause it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core.model.limits.limit import FOREVER_MS
from scripts.measure.once import ten_million
from sql_audit.mirror.turn import Mirror
from sql_audit.queries import scope_pauses
from sql_audit.store.connection.database import Database
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamWriter

T0 = 1_795_300_000_000
SCOPE = "ask.host@60s:failures=h1"
LIMIT = [2, 60_000, 30_000]


class Story:
    """A log of jobs that ask one host. Each method adds an event with its time, in ms after T0."""

    def __init__(self, writer: StreamWriter) -> None:
        self.writer = writer
        self.claims: dict[str, int] = {}
        self.fences: dict[str, str] = {}

    def at(self, ms: int) -> StreamWriter:
        self.writer.now_ms = T0 + ms - 1
        return self.writer

    def claim(self, ms: int, *ids: str, scope: str = SCOPE) -> None:
        for job_id in ids:
            if job_id not in self.claims:
                beginning = [job_id, 1, None, "ask", "normal", 9, 3, "d", f"2+{scope}"]
                self.at(ms).jobs("enqueued", beginning)
            claim = self.claims[job_id] = self.claims.get(job_id, 0) + 1
            told = [job_id, claim, [[scope, *LIMIT]]]
            self.fences[job_id] = self.at(ms).jobs("claimed", told, by="w-1")

    def fail(self, ms: int, job_id: str, kind: str = "OSError", **more: Any) -> None:
        """Fail a job. ``more`` says until when the failure pauses the scope, and which breakers except the error."""
        fence = self.fences[job_id]
        if "until" in more:
            paused = [job_id, fence, SCOPE, T0 + more["until"]]
            self.at(ms).jobs("scope_paused", paused, by="w-1")
        error = {"type": kind, "message": "no"}
        if "excepted" in more:
            error["excepted"] = more["excepted"]
        told = [job_id, fence, None, self.claims[job_id], error]
        self.at(ms).jobs("retried", told, by="w-1")

    def operator(self, ms: int, until: int | None, why: str) -> None:
        until_ms = None if until is None else min(FOREVER_MS, T0 + until)
        data = json.dumps([SCOPE, until_ms])
        self.at(ms).raw({"type": "pause_changed", "by": "ada", "data": data, "why": why})


@pytest.fixture
def story(writer: StreamWriter) -> Story:
    return Story(writer)


PAUSES = (
    "SELECT scope, at_ms, until_ms, resumed_at_ms, cause, who, reason, job_id FROM scope_pauses "
    f"WHERE queue = '{QUEUE}' ORDER BY epoch, seq"
)
FAILURES = (
    "SELECT paused_at_ms, job_id, error_type FROM scope_pause_failures "
    "WHERE queue = 'mail' AND scope = 'ask.host@60s:failures=h1' ORDER BY seq, failed_at_ms"
)
LATELY = (
    "SELECT failed_at, job_id, error_type FROM scope_pause_failures "
    f"WHERE queue = '{QUEUE}' AND scope = '{SCOPE}' AND paused_at_ms > {T0} ORDER BY failed_at_ms DESC"
)


def failures(database: Database) -> list[tuple[int, str, str]]:
    return [
        (row["paused_at_ms"] - T0, row["job_id"], row["error_type"])
        for row in auditlog.rows(database, FAILURES)
    ]


def test_the_documented_query_names_the_failures_that_paused_a_host(
    story: Story, mirror: Mirror, database: Database
) -> None:
    """Four failures do not count: one before the window, one of another host, an excepted one, and one after a
    pause."""
    story.claim(0, "old", "a", "b", "not-counted", "late")
    story.claim(0, "other", scope="ask.host@60s:failures=h2")
    story.fail(1_000, "old")
    story.fail(70_000, "a", "ConnectionError")
    story.fail(70_001, "other")
    story.fail(70_002, "not-counted", "ValueError", excepted="x@1s:failures ask.host@60s:failures")
    story.fail(71_000, "b", "TimeoutError", until=101_000)
    story.fail(71_500, "late")
    story.claim(101_000, "a")
    story.fail(101_500, "a", until=131_500)
    auditlog.drain(mirror)

    assert failures(database) == [
        (71_000, "a", "ConnectionError"),
        (71_000, "b", "TimeoutError"),
        (101_500, "a", "OSError"),
    ]
    found = auditlog.rows(database, PAUSES)
    assert [(row["at_ms"] - T0, row["until_ms"] - T0, row["cause"]) for row in found] == [
        (71_000, 101_000, "failures"),
        (101_500, 131_500, "failures"),
    ]
    assert [(row["who"], row["job_id"]) for row in found] == [("w-1", "b"), ("w-1", "a")]


def test_the_view_of_pauses_names_the_operator_the_handler_or_the_failures_that_caused_each_pause(
    story: Story, mirror: Mirror, database: Database
) -> None:
    """After the operator has resumed the scope, the failure of a job that began before the pause counts."""
    story.claim(0, "a", "b", "c")
    story.operator(1_000, FOREVER_MS, "maintenance")
    story.operator(2_000, None, "it is back")
    story.fail(3_000, "a")
    story.fail(4_000, "b", until=34_000)
    told = ["c", story.fences["c"], SCOPE, T0 + 99_000]
    story.at(5_000).jobs("scope_paused", told, by="w-1")
    rest = ["c", story.fences["c"], None, "scope_paused"]
    story.at(5_000).jobs("rolled_back", rest, by="w-1")
    auditlog.drain(mirror)

    assert [tuple(row.values())[1:] for row in auditlog.rows(database, PAUSES)] == [
        (T0 + 1_000, None, T0 + 2_000, "operator", "ada", "maintenance", None),
        (T0 + 4_000, T0 + 34_000, None, "failures", "w-1", None, "b"),
        (T0 + 5_000, T0 + 99_000, None, "handler", "w-1", None, "c"),
    ]
    assert [each[:2] for each in failures(database)] == [(4_000, "a"), (4_000, "b")]
    now_ms = T0 + 6_000
    last = scope_pauses.last_pauses(database.readers, QUEUE, [SCOPE, "no@1s=x"], now_ms)
    assert {scope: each.cause for scope, each in last.items()} == {SCOPE: "handler"}
    with database.readers.connect() as connection:
        found = scope_pauses.pauses_during(connection, QUEUE, SCOPE, T0 + 2_500, T0 + 4_500)
    assert [(each.at_ms - T0, each.ms_within(T0 + 2_500, T0 + 4_500)) for each in found] == [
        (4_000, 500)
    ]
    assert [(each.job_id, each.error_type) for each in found[0].failures] == [
        ("b", "OSError"),
        ("a", "OSError"),
    ]


def test_queries_of_pauses_read_no_other_events(
    story: Story, mirror: Mirror, database: Database
) -> None:
    """Checks query plans: SQL finds pauses by their own indexes, and their failures by the index of unsuccessful
    claims."""
    story.claim(0, "a", "b")
    story.fail(1, "a")
    story.fail(2, "b", until=30_002)
    auditlog.drain(mirror)

    def ask(asked: Database) -> None:
        scope_pauses.last_pauses(asked.readers, QUEUE, [SCOPE], T0)
        auditlog.rows(asked, LATELY)

    plans = ten_million.plans_of(database, ten_million.Question("pauses", ask), no_scans=True)

    assert len(plans) == 3
    assert ten_million.full_scans(database, plans) == []
    if database.dialect == "sqlite":
        said = ["\n".join(plan) for plan in plans]
        by_scope = "e USING INDEX job_event_pause_scope (queue=? AND <expr>=? AND at_ms"
        assert ["PRIMARY KEY (queue=?)" in each for each in said] == [False] * 3
        assert [by_scope in each for each in said] == [True] * 3
        by_end = "a USING INDEX job_attempt_failed (outcome=? AND ended_at_ms>? AND ended_at_ms<?)"
        assert [by_end in each for each in said] == [False, True, True]
    else:
        assert all(any("_queue_" in line for line in plan) for plan in plans), plans
