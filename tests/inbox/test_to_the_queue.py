"""Jobs from a transaction through a relay into their queue. Names, caps, windows, delays and results work as without an
inbox."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from rq_core import App, Breaker, Cap, RetryPolicy, Unique
from rq_core.worker import Worker, WorkerOptions
from sql_audit.inbox.service import run_relay
from tests.inbox.conftest import committed
from tests.kit.servers import RedisServer

HOUR_AGO = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')",
    "postgresql": "now() - interval '1 hour'",
}


@pytest.fixture
def app(valkey: RedisServer, url: str) -> Iterator[App]:
    with App(valkey.url, inbox=url) as app:

        @app.task(queue="mail", caps=[Cap(1, per="tenant")], keep_result=True)
        def capped(tenant: str) -> str:
            return tenant

        @app.task(queue="mail", unique=Unique("tenant"))
        def once(tenant: str) -> None: ...

        @app.task(queue="mail")
        def plain(n: int) -> None: ...

        @app.task(
            queue="mail",
            breaker=Breaker(failures=2, per_seconds=60, cooldown=3_600, per="host"),
            retry=RetryPolicy(max_attempts=1),
        )
        def ask(host: str) -> None:
            raise ConnectionError("no answer")

        yield app


def relay(app: App) -> None:
    assert app.inbox_url is not None
    run_relay(app.redis_url, app.prefix, app.inbox_url, stop=threading.Event(), once=True)


def work(app: App) -> None:
    asyncio.run(Worker(app, WorkerOptions(queues=("mail",), burst=True)).run())


def line_of(app: App, job_id: str) -> Any:
    client = app.client
    found = client.run(client.calls.reads.job(job_id, ["mail"]))
    assert found is not None
    return found.fields


def test_unique_names_caps_and_kept_results_work_for_jobs_from_an_inbox(app: App, url: str) -> None:
    capped, once = app.tasks["capped"], app.tasks["once"]
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        results = [capped.within(session).enqueue(tenant) for tenant in "aab"]
        first, second = (once.within(session).enqueue("a") for _ in range(2))
        by_name = app.within(session).enqueue("mail", "plain", {"n": 1}, priority="high")
    engine.dispose()
    relay(app)

    assert [] == committed(url)
    assert "2+capped.tenant=a" == line_of(app, results[0].id)["lane"]
    assert ["ready", "gone"] == [first.state(), second.state()]
    assert "high" == line_of(app, by_name.id)["priority"]
    work(app)
    assert ["a", "a", "b"] == [handle.result(5) for handle in results]


def test_breakers_count_the_failures_of_jobs_from_an_inbox(app: App, url: str) -> None:
    """Checks jobs of an app with the task's code, and of an app without it. The second failure pauses the scope."""
    engine = create_engine(url)
    with (
        App(app.redis_url, inbox=url) as other,
        Session(engine) as session,
        session.begin(),
    ):
        asked = [app.tasks["ask"].within(session).enqueue("a") for _ in range(2)]
        asked += [other.within(session).enqueue("mail", "ask", {"host": "a"}) for _ in range(2)]
    engine.dispose()
    relay(app)
    work(app)

    assert sorted(handle.state() for handle in asked) == ["dead", "dead", "ready", "ready"]
    (scope,) = (each for each in app.caps("mail") if each.scope == "ask.host@60s:failures=a")
    assert (scope.use.standing, scope.waiting) == ("paused", 2)


def test_the_delay_and_the_deadline_of_a_job_count_from_the_insert_into_the_inbox(
    app: App, url: str
) -> None:
    plain = app.tasks["plain"]
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        later = plain.with_options(delay=5400).within(session).enqueue(1)
        over = plain.with_options(delay=1800).within(session).enqueue(2)
        expired = plain.with_options(expires=60, keep_result=True).within(session).enqueue(3)
        session.execute(text(f"UPDATE rqc_inbox SET created_at = {HOUR_AGO[engine.dialect.name]}"))
    engine.dispose()
    relay(app)
    now_ms = app.client.run(app.client.calls.reads.now_ms("mail"))

    assert "ready" == over.state()
    assert "scheduled" == later.state()
    assert 1_740_000 < int(line_of(app, later.id)["due"]) - now_ms <= 1_800_000
    work(app)
    assert "Expired" == type(expired.wait(10)).__name__
    assert "gone" == over.state()


def test_calls_with_one_idempotency_key_become_one_job(app: App, url: str) -> None:
    keyed = app.tasks["plain"].with_options(idempotency_key="order 7")
    engine = create_engine(url)
    for _ in range(2):
        with Session(engine) as session, session.begin():
            handles = {keyed.within(session).enqueue(7).id for _ in range(2)}
        relay(app)
        work(app)
    engine.dispose()

    (job_id,) = handles
    assert [] == committed(url)
    log = app.client.run(app.client.calls.reads.ended(job_id, ["mail"]))
    assert log is not None
    assert "succeeded" == log[1].outcome
