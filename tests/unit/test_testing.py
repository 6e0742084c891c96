"""Tests of a user's program on fakeredis. They enqueue jobs, run them in a drain, and read the results.

Such tests need neither a server nor a worker. This file is also an example for users.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rq_core import (
    App,
    AuditNotConfigured,
    Cap,
    DeadJob,
    Failed,
    GiveUp,
    Gone,
    NotEdited,
    Rate,
    RetryPolicy,
    RqCoreError,
    ScopeFull,
    WaitTimeout,
    current_job,
    testing,
)
from rq_core.errors import UsageError
from rq_core.model.job import JobError
from rq_core.protocol.calls import claims

app = App("redis://nowhere.invalid")
outbox: list[str] = []


@app.task(queue="mail", retry=RetryPolicy(max_attempts=3, base=60))
def send(to: str, fails: int = 0) -> None:
    if current_job().claim <= fails:
        raise ConnectionError("mail server is away")
    outbox.append(to)


@app.task
async def greet(names: list[str]) -> None:
    for name in names:
        await send.with_options(delay=3_600).enqueue_async(to=name)


@app.task
def refuse() -> None:
    raise GiveUp("no such user")


mourned: list[DeadJob] = []


def mourn(job: DeadJob) -> None:
    mourned.append(job)
    if job.arguments["hook"] == "fails" and current_job().claim == 1:
        raise ConnectionError("the hook's server is away")


@app.task(queue="mail", retry=RetryPolicy(max_attempts=2, base=60, jitter=False), on_dead=mourn)
def mortal(hook: str) -> None:
    raise ValueError("no")


@app.task
def forever() -> None:
    forever.enqueue()


@pytest.fixture
def fake() -> Iterator[testing.Fake]:
    outbox.clear()
    mourned.clear()
    with testing.fake(app) as made:
        yield made


def test_enqueued_jobs_run_in_a_drain(fake: testing.Fake) -> None:
    handle = send.enqueue(to="ada")
    assert handle.state() == "ready"

    (ran,) = fake.drain()

    assert (ran.task, ran.queue, ran.outcome, ran.error) == ("send", "mail", "succeeded", None)
    assert outbox == ["ada"]
    assert handle.state() == "gone"


def test_a_test_can_read_waiting_jobs_before_they_run(fake: testing.Fake) -> None:
    greet.enqueue(["ada"])
    later = send.with_options(delay=90, priority="high").enqueue(to="grace", fails=1)
    now = send.enqueue(to="ada")

    assert fake.enqueued("mail") == [
        testing.Enqueued(later.id, "mail", "send", {"to": "grace", "fails": 1}, "high", 90.0),
        testing.Enqueued(now.id, "mail", "send", {"to": "ada"}, "normal", None),
    ]
    assert [job.task for job in fake.enqueued()] == ["greet", "send", "send"]
    assert fake.enqueued("nothing-here") == []
    assert outbox == []

    fake.drain()

    assert fake.enqueued() == []


def test_a_drain_runs_jobs_that_handlers_enqueue_and_skips_delays(fake: testing.Fake) -> None:
    greet.enqueue(["ada", "grace"])

    ran = fake.drain()

    assert [(each.task, each.outcome) for each in ran] == [
        ("greet", "succeeded"), ("send", "succeeded"), ("send", "succeeded"),
    ]  # fmt: skip
    assert outbox == ["ada", "grace"]


@pytest.mark.parametrize(
    ("fails", "outcomes", "sent"),
    [
        (2, ["scheduled", "scheduled", "succeeded"], ["ada"]),
        (9, ["scheduled", "scheduled", "dead"], []),
    ],
)
def test_a_drain_runs_retries_without_waiting(
    fake: testing.Fake, fails: int, outcomes: list[str], sent: list[str]
) -> None:
    handle = send.enqueue("ada", fails=fails)

    ran = fake.drain()

    assert [each.outcome for each in ran] == outcomes
    assert [each.claim for each in ran] == [1, 2, 3]
    assert ran[0].error == "ConnectionError: mail server is away"
    assert outbox == sent
    assert handle.state() == ("gone" if sent else "dead")


def test_a_job_whose_handler_gives_up_is_dead(fake: testing.Fake) -> None:
    refuse.enqueue()

    (ran,) = fake.drain()

    assert (ran.outcome, ran.error) == ("dead", "GiveUp: no such user")


def test_a_drain_does_not_run_a_cancelled_job(fake: testing.Fake) -> None:
    handle = send.enqueue("ada")

    assert handle.cancel(why="a test") == "cancelled"
    assert fake.drain() == []


def test_a_drain_runs_an_edited_job_at_its_new_time(fake: testing.Fake) -> None:
    first = send.with_options(delay=60).enqueue("first")
    second = send.with_options(delay=60).enqueue("second")

    first.edit(delay=90, why="a test")
    second.edit(now=True, priority="high")

    assert [(job.delay, job.priority) for job in fake.enqueued()] == [
        (90, "normal"), (None, "high")
    ]  # fmt: skip
    fake.drain()
    assert outbox == ["second", "first"]
    with pytest.raises(NotEdited, match="Redis does not have it"):
        first.edit(now=True)


def test_advance_makes_a_delayed_job_claimable_at_its_due_time(fake: testing.Fake) -> None:
    handle = send.with_options(delay=60).enqueue("ada")
    client = app.client

    def claimed() -> int:
        return len(client.run(claims.claim("mail", "w-1", 1)).jobs)

    fake.advance(59)
    assert claimed() == 0
    fake.advance(2)
    assert claimed() == 1
    assert handle.state() == "running"


def test_a_drain_calls_the_hook_for_dead_jobs_once_for_each_dead_job(fake: testing.Fake) -> None:
    """A worker calls this hook, and so must a drain."""
    first, second = mortal.enqueue("works"), mortal.enqueue("works")

    ran = fake.drain("mail")

    assert [(job.id, job.task, job.arguments) for job in mourned] == [
        (handle.id, "mortal", {"hook": "works"}) for handle in (first, second)
    ]
    assert {(j.queue, j.reason, j.claims, j.failures, j.losses) for j in mourned} == {
        ("mail", "attempts_spent", 2, 2, 0)
    }
    assert [each.outcome for each in ran if each.task == "mortal:on_dead"] == ["succeeded"] * 2
    assert fake.drain() == []
    third = mortal.enqueue("works")
    fake.drain()
    assert [job.id for job in mourned] == [first.id, second.id, third.id]


def test_a_drain_calls_the_hook_of_a_job_that_expired_between_its_attempts(
    fake: testing.Fake,
) -> None:
    """The job dies within a claim, without a settlement."""
    handle = mortal.with_options(expires=1).enqueue("works")

    fake.drain()

    assert [(job.id, job.reason) for job in mourned] == [(handle.id, "expired")]


async def test_a_hook_that_fails_in_a_drain_is_logged_and_runs_again(
    fake: testing.Fake, caplog: pytest.LogCaptureFixture
) -> None:
    await mortal.enqueue_async("fails")

    ran = await fake.drain_async()

    assert [each.outcome for each in ran if each.task == "mortal:on_dead"] == [
        "scheduled",
        "succeeded",
    ]
    assert len({job.event for job in mourned}) == 1
    assert "job failed: ConnectionError: the hook's server is away" in caplog.text


async def test_a_blocking_drain_in_an_event_loop_names_drain_async(fake: testing.Fake) -> None:
    handle = send.enqueue(to="ada")

    with pytest.raises(UsageError, match="await drain_async"):
        fake.drain()

    assert handle.state() == "ready"


async def test_drain_async_runs_jobs_in_an_event_loop(fake: testing.Fake) -> None:
    await send.enqueue_async(to="ada")

    ran = await fake.drain_async()
    await app.aclose()

    assert [each.outcome for each in ran] == ["succeeded"]


def test_a_drain_that_never_ends_raises_an_error(fake: testing.Fake) -> None:
    forever.enqueue()

    with pytest.raises(RqCoreError, match="5 runs"):
        fake.drain(runs_max=5)


def test_a_job_of_an_unknown_task_dies_after_its_limit_in_a_drain(fake: testing.Fake) -> None:
    app.enqueue("mail", "elsewhere", {"a": 1})

    ran = fake.drain()

    assert {each.outcome for each in ran[:-1]} == {"scheduled"}
    assert ran[-1].outcome == "dead"


def test_each_fake_begins_empty_and_restores_the_connections_of_the_app() -> None:
    before = app.connections
    with testing.fake(app):
        send.enqueue("ada")
    with testing.fake(app) as fake:
        assert fake.drain() == []

    assert app.connections is before


def test_a_fake_does_not_read_the_audit_log(tmp_path: Path) -> None:
    """A wait for a job that has left Redis would otherwise wait for a mirror."""
    app = App(audit=f"sqlite:///{tmp_path}/audit.db")
    with testing.fake(app):
        gone = app.handle_by_id("mail", "unknown")
        assert Gone("unknown") == gone.wait(60)
        assert "gone" == gone.state()
        with pytest.raises(AuditNotConfigured):
            gone.history()

    assert app.audit_url is not None
    assert list(tmp_path.iterdir()) == []


def test_an_async_task_can_be_called_directly_in_a_test() -> None:
    with testing.fake(app):
        asyncio.run(greet([]))


def test_caps_and_rates_hold_on_the_fake_server() -> None:
    """A full cap stops jobs. A rate lets jobs run again when the clock has advanced."""
    capped = App("redis://nowhere.invalid")
    ran: list[str] = []

    @capped.task(queue="mail", caps=[Cap(1, per="to", on_full="discard"), Rate(1, per_seconds=60)])
    def write(to: str) -> None:
        ran.append(to)

    @capped.task(queue="mail", caps=[Cap(1, on_full="reject")])
    async def one() -> None: ...

    with testing.fake(capped) as fake:
        assert [write.enqueue(to).discarded for to in ("a", "a", "b")] == [False, True, False]
        one.enqueue()
        with pytest.raises(ScopeFull):
            one.enqueue()

        assert [done.outcome for done in fake.drain()] == ["succeeded"] * 3
    assert ran == ["a", "b"]


def test_a_job_runs_once_if_its_producer_did_not_know_its_caps() -> None:
    producer, capped = App("redis://nowhere.invalid"), App("redis://nowhere.invalid")

    @capped.task(queue="mail", caps=[Cap(1, per="to")])
    def write(to: str) -> None: ...

    with testing.fake(capped) as fake:
        producer.connections = fake.connections
        producer.enqueue("mail", "write", {"to": "a"})

        (ran,) = fake.drain()
    assert (ran.claim, ran.outcome) == (2, "succeeded")


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_the_error_without_fakeredis_or_lupa_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    before = app.connections

    with pytest.raises(ImportError, match="pip install 'fakeredis\\[lua\\]'"), testing.fake(app):
        pass

    assert app.connections is before


def test_a_drain_runs_delayed_jobs_after_the_jobs_that_are_due_now(
    fake: testing.Fake,
) -> None:
    at = datetime.now(UTC) + timedelta(hours=2)
    send.with_options(at=at).enqueue(to="later")
    send.with_options(at=at - timedelta(days=1)).enqueue(to="at once")

    waiting = {job.arguments["to"]: job.delay for job in fake.enqueued("mail")}
    assert waiting["at once"] is None
    assert waiting["later"] == pytest.approx(7_200, abs=60)
    assert [run.outcome for run in fake.drain()] == ["succeeded", "succeeded"]
    assert outbox == ["at once", "later"]


def test_a_wait_on_the_fake_server_checks_the_job_once() -> None:
    with testing.fake(app) as fake:
        handle = send.with_options(max_attempts=1).enqueue("ada", 5)
        with pytest.raises(WaitTimeout):
            handle.wait(60)
        fake.drain()

        outcome = handle.wait(60)

    assert isinstance(outcome, Failed)
    assert JobError("ConnectionError", "mail server is away") == outcome.error


def test_as_completed_works_on_the_fake_server() -> None:
    app = App()

    @app.task(queue="q")
    def note(x: int) -> None: ...

    with testing.fake(app) as fake:
        handles = [note.with_options(keep_result=True).enqueue(x) for x in range(3)]
        fake.drain()
        ended = list(app.as_completed(handles, timeout=1))

    assert {handle.id for handle in handles} == {handle.id for handle in ended}


def test_a_drain_keeps_what_handlers_show() -> None:
    app = App()

    @app.task
    def fails() -> None:
        current_job().progress(1, 3, "first")
        current_job().emit(f"attempt {current_job().claim}")
        raise ValueError("no")

    with testing.fake(app) as server:
        job = fails.with_options(max_attempts=2).enqueue()
        server.drain()
        last, chunks = job.progress(), list(job.stream())

    assert last is not None
    assert (last.done, last.total, last.text, last.claim) == (1, 3, "first", 2)
    assert [(c.text, c.claim) for c in chunks] == [("attempt 1", 1), ("attempt 2", 2)]
