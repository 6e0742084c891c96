"""Enqueues from an app to a real server: accepted jobs, duplicates, and what handles report."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rq_core import (
    App,
    ArgumentsInvalid,
    AuditNotConfigured,
    InvalidName,
    InvalidOption,
    PayloadTooLarge,
    QueueFull,
    ServerUnavailable,
)
from rq_core.app.task import Task
from rq_core.model.job import NewJob, read_spec
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.plan import Patience, Unsent
from tests.kit.servers import RedisServer, free_port

Noted = Task[..., None]


def note(n: int, text: str = "") -> None:
    """Do nothing."""


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    with App(redis_url) as made:
        made.task(queue="notes")(note)
        yield made


@pytest.fixture
def task(app: App) -> Any:
    return app.tasks["note"]


def events(app: App, queue: str = "notes") -> list[str]:
    return [
        fields["type"]
        for _, fields in app.client.run(app.client.calls.audit.read_outbox(queue, "-", 100))
    ]


def claim(app: App, limit: int = 10, queue: str = "notes") -> list[Any]:
    client = app.client
    claimed = client.run(claims.claim(queue, "w-1", limit))
    return [(job.id, read_spec(job.spec)) for job in claimed.jobs]


def test_a_handle_that_was_made_from_a_job_id_reads_and_cancels_the_job(
    app: App, task: Noted
) -> None:
    kept = task.enqueue(1).id

    handle = app.handle_by_id("notes", kept)

    assert (handle.state(), repr(handle)) == ("ready", f"<job {kept} in notes>")
    assert handle.cancel() == "cancelled"
    assert (handle.state(), handle.cancel()) == ("gone", "gone")
    for queue, job_id in (("notes", "no such id"), ("no queue", kept)):
        with pytest.raises(InvalidName):
            app.handle_by_id(queue, job_id)


def test_a_claimed_job_has_the_arguments_that_were_enqueued(app: App, task: Noted) -> None:
    handle = task.enqueue(1, text="é\0\n")

    assert (handle.queue, handle.task, handle.duplicate) == ("notes", "note", False)
    ((job_id, spec),) = claim(app)
    assert job_id == handle.id
    assert app.tasks["note"].arguments.load(spec.args_json) == {"n": 1, "text": "é\0\n"}


async def test_a_blocking_call_in_an_event_loop_logs_one_warning(
    app: App, task: Noted, caplog: pytest.LogCaptureFixture
) -> None:
    await task.enqueue_async(1)
    assert caplog.records == []

    thread = threading.Thread(target=task.enqueue, args=(2,))
    thread.start()
    thread.join()
    assert caplog.records == []

    task.enqueue(3)
    app.enqueue("notes", "note", {"n": 4})

    await app.aclose()
    (said,) = [each.getMessage() for each in caplog.records]
    assert f"in an event loop, at {__file__}:" in said
    assert "enqueue_async" in said


async def test_concurrent_async_enqueues_are_sent_in_batched_calls(app: App, task: Noted) -> None:
    handles = await asyncio.gather(*(task.enqueue_async(n) for n in range(200)))
    await app.aclose()

    assert len({handle.id for handle in handles}) == 200
    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 200
    # 8 calls are in flight at most, the rest join the next ones.
    assert events(app).count("enqueued") < 20


def test_an_enqueue_of_a_used_id_is_a_duplicate_until_its_job_has_ended(
    app: App, task: Noted
) -> None:
    prepared = task.with_options(id="once")

    assert [prepared.enqueue(n).duplicate for n in (1, 2)] == [False, True]
    ((_, spec),) = claim(app)
    assert spec.args_json == '{"n":1}'
    assert prepared.enqueue(3).duplicate
    assert events(app).count("enqueued") == 1


async def test_async_enqueues_detect_duplicate_ids(app: App, task: Noted) -> None:
    prepared = task.with_options(id="once")

    assert not (await prepared.enqueue_async(1)).duplicate
    assert (await prepared.enqueue_async(2)).duplicate
    both = task.with_options(id="both")
    handles = await asyncio.gather(*(both.enqueue_async(n) for n in range(50)))
    await app.aclose()

    assert [handle.duplicate for handle in handles].count(False) == 1


def test_enqueue_many_accepts_jobs_of_several_queues(app: App, task: Noted) -> None:
    other = task.with_options(queue="other")

    accepted = app.enqueue_many((other if n % 3 else task).job(n) for n in range(2_500))

    assert len(accepted.ids) == 2_500
    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 834
    assert app.client.run(app.client.calls.reads.counts("other")).ready["normal"] == 1_666


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_enqueue_many_async_accepts_jobs(app: App, task: Noted, asynchronous: bool) -> None:
    async def generate() -> AsyncIterator[NewJob]:
        for n in range(1_500):
            yield task.job(n)

    jobs: Any = generate() if asynchronous else (task.job(n) for n in range(1_500))
    accepted = await app.enqueue_many_async(jobs)
    await app.aclose()

    assert len(accepted.ids) == 1_500
    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 1_500


async def test_an_error_that_an_async_generator_raises_carries_the_jobs_accepted_before_it(
    app: App, task: Noted
) -> None:
    async def generate() -> AsyncIterator[NewJob]:
        for n in range(1_200):
            yield task.job(n)
        yield task.job("?")

    with pytest.raises(ArgumentsInvalid) as caught:
        await app.enqueue_many_async(generate())
    await app.aclose()

    assert len(caught.value.accepted.ids) == 1_000  # type: ignore[attr-defined]
    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 1_000


def test_any_error_that_stops_a_generator_carries_the_accepted_jobs(app: App, task: Noted) -> None:
    """Checks that the producer's own exception lists the accepted jobs. The producer can continue after the last of
    these."""

    def generate() -> Iterator[NewJob]:
        for n in range(600):
            yield task.job(n)
        int("?")

    with pytest.raises(ValueError, match="invalid literal") as caught:
        app.enqueue_many(generate())

    assert len(caught.value.accepted.ids) == 500  # type: ignore[attr-defined]
    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 500


async def test_any_error_that_stops_an_async_generator_carries_the_accepted_jobs(
    app: App, task: Noted
) -> None:
    async def generate() -> AsyncIterator[NewJob]:
        for n in range(1_200):
            yield task.job(n)
        int("?")

    with pytest.raises(ValueError, match="invalid literal") as caught:
        await app.enqueue_many_async(generate())
    await app.aclose()

    assert len(caught.value.accepted.ids) == 1_000  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["in the generator", "while Redis is asked"])
def test_keyboard_interrupt_and_system_exit_carry_the_accepted_jobs(
    app: App, task: Noted, kind: type[BaseException], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = app.client._transport
    real, calls = transport.exchange, []

    def exchange(*what: Any) -> Any:
        calls.append(what)
        if where == "while Redis is asked" and len(calls) > 4:
            raise kind
        return real(*what)

    def generate() -> Iterator[NewJob]:
        for n in range(600):
            yield task.job(n)
        if where == "in the generator":
            raise kind
        yield from (task.job(n) for n in range(1_000))

    monkeypatch.setattr(transport, "exchange", exchange)
    with pytest.raises(kind) as caught:
        app.enqueue_many(generate())
    monkeypatch.undo()

    accepted = caught.value.accepted.ids  # type: ignore[attr-defined]
    assert len(accepted) >= 250
    assert len(accepted) == app.client.run(app.client.calls.reads.counts("notes")).ready["normal"]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_the_cancellation_of_an_enqueue_carries_the_accepted_jobs(
    app: App, task: Noted, asynchronous: bool
) -> None:
    """Checks that the error lists each accepted job, and no job of the unfinished call."""
    transport = app.async_client()._transport
    real, calls, held = transport.exchange, [], asyncio.Event()
    said: list[int] = []

    async def exchange(*what: Any) -> Any:
        calls.append(what)
        if len(calls) > 4:
            held.set()
            await asyncio.Event().wait()
        return await real(*what)

    async def generate() -> AsyncIterator[NewJob]:
        for n in range(3_000):
            yield task.job(n)

    async def enqueue() -> None:
        jobs = generate() if asynchronous else [task.job(n) for n in range(3_000)]
        try:
            await app.enqueue_many_async(jobs)
        except asyncio.CancelledError as error:
            said.append(len(error.accepted.ids))  # type: ignore[attr-defined]
            raise

    transport.exchange = exchange  # type: ignore[method-assign]
    running = asyncio.create_task(enqueue())
    await held.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    transport.exchange = real  # type: ignore[method-assign]

    ready = app.client.run(app.client.calls.reads.counts("notes")).ready["normal"]
    assert said == [ready]
    assert ready >= 250
    await app.aclose()


async def test_a_cancelled_enqueue_does_not_send_a_job_that_still_waits_to_be_sent(
    app: App, task: Noted
) -> None:
    client = app.async_client()
    await client.run(client.calls.delivery.handshake("notes"))
    transport = client._transport
    real, may_go, sent = transport.exchange, asyncio.Event(), asyncio.Event()

    async def exchange(*what: Any) -> Any:
        sent.set()
        await may_go.wait()
        return await real(*what)

    transport.exchange = exchange  # type: ignore[method-assign]
    on_their_way = [asyncio.create_task(task.enqueue_async(n)) for n in range(10)]
    await sent.wait()
    waits = asyncio.create_task(task.with_options(id="given-up").enqueue_async(99))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    may_go.set()
    await asyncio.gather(*on_their_way)

    assert app.client.run(app.client.calls.reads.job("given-up", ["notes"])) is None
    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 10
    await app.aclose()


@pytest.mark.parametrize("survives", [True, False], ids=["shared", "alone"])
@pytest.mark.parametrize(
    "refused, met",
    [(True, False), (True, True), (False, True)],
    ids=["no server yet", "no server", "connecting"],
)
async def test_a_cancelled_enqueue_sends_no_job_after_the_connection_is_back(
    app: App, task: Noted, *, refused: bool, met: bool, survives: bool
) -> None:
    """Checks that a caller may enqueue the job again. The cancelled call does not enqueue it later."""
    client = app.async_client()
    if met:
        await client.run(client.calls.delivery.handshake("notes"))
    real, may_go, tried = client._transport.exchange, asyncio.Event(), asyncio.Event()

    async def exchange(commands: Any, *how: Any) -> Any:
        tried.set()
        if refused and not may_go.is_set():
            return [Unsent("no server, says the test")] * len(commands)
        await may_go.wait()
        return await real(commands, *how)

    client._transport.exchange = exchange  # type: ignore[method-assign]
    ids = ["given-up", "kept"] if survives else ["given-up"]
    given_up, *kept = [
        asyncio.create_task(task.with_options(id=job).enqueue_async(1)) for job in ids
    ]
    await tried.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    may_go.set()
    await asyncio.gather(*kept)
    await app.aclose()

    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == len(kept)
    assert app.client.run(app.client.calls.reads.job("given-up", ["notes"])) is None


def test_enqueue_many_refuses_values_that_are_not_jobs(app: App, task: Noted) -> None:
    """Checks three invalid calls: a handle, a mapping of arguments, and a job that is not in a list."""
    for jobs in ([task.job(1), task.enqueue(2)], [{"n": 1}], task.job(1)):
        with pytest.raises(InvalidOption, match=r"jobs=.* must be jobs, each as task\.job"):
            app.enqueue_many(jobs)  # type: ignore[arg-type]

    assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == 1


def test_a_producer_can_enqueue_by_the_names_of_queue_and_task(app: App, redis_url: str) -> None:
    with App(redis_url) as elsewhere:
        handle = elsewhere.enqueue("notes", "note", {"n": 5}, priority="high")

        assert handle.state() == "ready"
    ((claimed, spec),) = claim(app)
    assert (claimed, spec.task, spec.args_json) == (handle.id, "note", '{"n":5}')
    assert (spec.max_attempts, spec.open_losses) == (None, True)


async def test_a_producer_can_enqueue_async_by_the_names_of_queue_and_task(app: App) -> None:
    handle = await app.enqueue_async("notes", "note", {"n": 5}, delay=60)

    assert await handle.state_async() == "scheduled"
    assert await handle.cancel_async() == "cancelled"
    assert await handle.state_async() == "gone"
    await app.aclose()


def test_a_handle_reads_the_state_of_its_job_and_cancels_it(app: App, task: Noted) -> None:
    waiting, running, delayed = (
        task.enqueue(1),
        task.enqueue(2),
        task.with_options(delay=9).enqueue(3),
    )

    assert [each.state() for each in (waiting, running, delayed)] == ["ready", "ready", "scheduled"]
    assert waiting.cancel(why="not wanted") == "cancelled"
    assert [job_id for job_id, _ in claim(app)] == [running.id]
    assert running.state() == "running"
    assert running.cancel() == "cancelling"
    assert running.state() == "cancelling"
    assert (waiting.state(), waiting.cancel()) == ("gone", "gone")


def test_history_without_an_audit_database_raises_a_typed_error(app: App, task: Noted) -> None:
    app.audit_url = None

    with pytest.raises(AuditNotConfigured, match="RQ_CORE_AUDIT_URL"):
        task.enqueue(1).history()


def test_settings_are_applied_and_logged(app: App) -> None:
    app.queue("notes", lease=5, dead_retention=60)
    app.queue("untouched")

    app.apply_settings()
    app.apply_settings()

    settings = app.client.run(app.client.calls.reads.counts("notes")).settings
    assert (settings["lease_ms"], settings["dead_retention_ms"]) == (5_000, 60_000)
    assert events(app) == ["epoch_started", *["policy_changed"] * 3]  # the task is the third
    assert app.client.run(app.client.calls.reads.queues()) == ["notes"]


async def test_apply_settings_async_applies_the_settings(app: App) -> None:
    app.queue("notes", lease=5)

    await app.apply_settings_async()
    await app.aclose()

    assert app.client.run(app.client.calls.delivery.handshake("notes")).lease_ms == 5_000


BAD: list[tuple[Callable[[App], Any], type[Exception]]] = [
    (lambda app: app.tasks["note"].enqueue("x"), ArgumentsInvalid),
    (lambda app: app.tasks["note"].enqueue(1, "\ud800"), ArgumentsInvalid),
    (lambda app: app.tasks["note"].enqueue(1, "x" * 2**21), PayloadTooLarge),
    (lambda app: app.enqueue("notes", "x", {"a": float("nan")}), ArgumentsInvalid),
]


@pytest.mark.parametrize(("call", "kind"), BAD)
def test_invalid_input_reaches_no_queue(
    app: App, call: Callable[[App], Any], kind: type[Exception]
) -> None:
    app.client.run(app.client.calls.delivery.handshake("notes"))
    before = app.client.run(app.client.calls.reads.snapshot("notes"))

    with pytest.raises(kind):
        call(app)

    assert app.client.run(app.client.calls.reads.snapshot("notes")) == before


def test_a_job_with_the_largest_allowed_payload_is_enqueued_and_claimed(
    app: App, task: Noted
) -> None:
    room = app.max_payload - len('{"n":1,"text":""}')

    task.enqueue(1, "x" * room)

    ((_, spec),) = claim(app)
    assert len(spec.args_json) == app.max_payload


def test_enqueue_without_a_server_raises_server_unavailable_after_the_time_limit_that_the_app_sets() -> (
    None
):
    url = f"redis://127.0.0.1:{free_port()}"
    with App(url, patience=Patience(unsent=0.2)) as app:
        task = app.task(note)
        started = time.monotonic()

        with pytest.raises(ServerUnavailable, match=rf"{url}.*Is it running.*embedded://"):
            task.enqueue(1)

    assert time.monotonic() - started < 5


async def test_every_async_caller_receives_the_error_of_a_missing_server() -> None:
    app = App(f"redis://127.0.0.1:{free_port()}", patience=Patience(unsent=0.1))
    task = app.task(note)

    outcomes = await asyncio.gather(
        *(task.enqueue_async(n) for n in range(20)), return_exceptions=True
    )
    await app.aclose()

    assert {type(each) for each in outcomes} == {ServerUnavailable}


def test_a_full_server_refuses_new_jobs_and_keeps_its_jobs(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(maxmemory="8mb", maxmemory_policy="noeviction")
    with App(server.url) as app:
        task = app.task(queue="notes")(note)

        with pytest.raises(QueueFull, match="maxmemory") as caught:
            app.enqueue_many(task.job(n, "x" * 10_000) for n in range(5_000))

        accepted = caught.value.accepted.ids  # type: ignore[attr-defined]
        assert len(accepted) > 0
        assert app.client.run(app.client.calls.reads.counts("notes")).ready["normal"] == len(
            accepted
        )


def test_an_app_can_be_closed_and_used_again(app: App, task: Noted) -> None:
    task.enqueue(1)
    app.close()
    app.close()

    assert task.enqueue(2).state() == "ready"


def test_each_event_loop_has_its_own_client(app: App, task: Noted) -> None:
    seen = []

    async def once() -> None:
        await task.enqueue_async(1)
        seen.append(app.async_client())
        assert app.async_client() is seen[-1]
        await app.aclose()

    asyncio.run(once())
    asyncio.run(once())

    assert seen[0] is not seen[1]
