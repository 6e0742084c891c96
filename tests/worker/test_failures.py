"""Failures of handlers. Whatever a handler raises, or does at its timeout, affects only its own job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions, held_jobs
from rq_core.worker.execution import executor
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.worker.conftest import RunWorker, event_types, events, gone


async def test_an_async_handler_is_cancelled_at_its_timeout(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.sleeping.with_options(timeout=0.1, max_attempts=1).enqueue(60)

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert events(client, handle.id)[-1][1]["error"]["type"] == "HandlerTimeout"
    assert witness.lines("end") == []


@pytest.mark.slow
async def test_an_async_handler_that_ignores_its_timeout_counts_as_failed_and_not_as_a_lost_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "END_GRACE_S", 0.1)
    monkeypatch.setattr(held_jobs, "EXTENSION_GRACE_S", 0.5)
    handle = crew.tidying.with_options(timeout=0.1, max_attempts=1).enqueue(2.5 * crew.LEASE)

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")
        await wait_until_async(lambda: witness.lines("tidied"), "the handler came to its end")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]
    assert events(client, handle.id)[-1][1]["error"]["type"] == "HandlerTimeout"


async def test_a_sync_handler_that_ends_after_its_timeout_does_not_count_as_a_success(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.gated_in_thread.with_options(timeout=0.1, max_attempts=1).enqueue()

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")
        witness.let_end()
        await wait_until_async(lambda: witness.lines("end"), "the thread came to its end")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]


@pytest.mark.parametrize("task", [crew.raising, crew.raising_in_thread], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "Ending"])
async def test_any_error_of_a_handler_fails_only_its_own_job(
    client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any, name: str
) -> None:
    handle = task.enqueue(name)

    async with run_worker() as worker:
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")
        good = crew.coroutine.enqueue(n=1)
        await wait_until_async(gone(client, good.id), "the worker goes on")

    assert worker.stats.failed == 3
    died = events(client, handle.id)[-1][1]
    assert (died["reason"], died["error"]["type"]) == ("attempts_spent", name)


@pytest.mark.parametrize(
    "task", [crew.snoozes, crew.snoozes_async, crew.snoozes_apart], ids=lambda t: t.name
)
async def test_a_job_that_snoozes_uses_no_attempt(
    client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any
) -> None:
    handle = task.enqueue()

    async with run_worker() as worker:
        await wait_until_async(gone(client, handle.id), "the job has succeeded")

    told = events(client, handle.id)
    back = [facts for entry, facts in told if entry.event == "rolled_back"]
    assert ["snoozed"] * 5 == [facts["reason"] for facts in back]
    assert all(facts["due_ms"] for facts in back)
    assert [1, 2, 3, 4, 5, 6] == [line["claim"] for line in witness.lines("snoozes")]
    assert "succeeded" == told[-1][0].event
    assert 0 == worker.stats.failed


class Unruly(Exception):
    """An exception whose text (``where="words"``) or notes (``where="notes"``) raise ``how`` when they are read."""

    def __init__(self, where: str, how: type[BaseException]) -> None:
        self.where, self.how = where, how

    def __str__(self) -> str:
        return "plain" if self.where != "words" else _raise(self.how)

    @property
    def __notes__(self) -> list[str]:
        return [] if self.where != "notes" else _raise(self.how)


def _raise(how: type[BaseException]) -> Any:
    raise how


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["backoff", "redactor", "words", "notes"])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_error_while_a_failure_is_being_described_does_not_end_the_worker(
    valkey_url: str, kind: str, where: str, how: type[BaseException]
) -> None:
    """Checks `SystemExit`, `KeyboardInterrupt` and `CancelledError` from a backoff, a redactor, or an exception's text
    or notes."""
    app = App(valkey_url, redact=lambda text: text if where != "redactor" else _raise(how))
    backoff = (lambda _n: _raise(how)) if where == "backoff" else "fixed"
    done: list[int] = []

    def fail() -> None:
        raise Unruly(where, how)

    async def fail_async() -> None:
        fail()

    def go_on() -> None:
        done.append(1)

    retry = RetryPolicy(max_attempts=2, backoff=backoff, base=0.01, jitter=False)
    failing = app.task(queue="q", retry=retry)(fail if kind == "def" else fail_async)
    after = app.task(queue="q")(go_on)
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=1))
    running = asyncio.create_task(worker.run())
    handle = await failing.enqueue_async()
    client = app.client
    await wait_until_async(lambda: handle.state() == "dead", "it has failed twice")
    await after.enqueue_async()
    await wait_until_async(lambda: bool(done), "its place is free again")
    worker.stop()
    assert await running is True
    error = events(client, handle.id, "q")[-1][1]["error"]
    await app.aclose()

    assert worker.stats.failed == 2
    assert error["type"] == "Unruly"


@pytest.mark.parametrize("task", [crew.raising, crew.raising_in_thread], ids=lambda t: t.name)
async def test_a_cancellation_that_no_caller_requested_counts_as_a_failure(
    client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any
) -> None:
    """Checks a future that a library cancelled. The job uses an attempt, since it would otherwise run again forever."""
    handle = task.enqueue("CancelledError")

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert "rolled_back" not in event_types(client, handle.id)


@pytest.mark.parametrize("task", [crew.raising, crew.raising_in_thread], ids=lambda t: t.name)
async def test_an_error_whose_method_str_raises_is_reported(
    client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any
) -> None:
    handle = task.enqueue("Speechless")

    async with run_worker(concurrency=1):
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")
        good = crew.function.enqueue(n=1)
        await wait_until_async(gone(client, good.id), "its place is free again")

    error = events(client, handle.id)[-1][1]["error"]
    assert (error["type"], error["message"]) == (
        "Speechless",
        "<no words: str() raised RuntimeError>",
    )


@pytest.mark.slow
async def test_a_job_that_timed_out_in_a_thread_can_run_again_in_the_same_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a handler that still runs when its job is claimed again. The end of this handler must not end the new
    claim."""
    handle = crew.gated_in_thread.with_options(timeout=1.0, max_attempts=2).enqueue()
    async with run_worker() as worker:
        await wait_until_async(lambda: len(witness.lines("begin")) == 2, "it runs again")
        witness.let_end()
        await wait_until_async(lambda: len(witness.lines("end")) == 1, "the first thread ended")
        await wait_until_async(
            lambda: [claim for _, claim, _ in worker._handlers.executor.running] == [handle.id],
            "the second claim runs alone",
        )
        await wait_until_async(lambda: handle.state() == "dead", "its attempts are spent")
        witness.let_end(2)


@pytest.mark.parametrize("n", [-1, -2], ids=["error", "exit"])
async def test_if_a_validator_raises_the_job_is_given_back_to_its_queue_and_no_other_job_is_affected(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, n: int
) -> None:
    other = App(app.redis_url)
    bad = other.enqueue("crew", "counting", {"count": {"n": n}})
    good = other.enqueue("crew", "counting", {"count": {"n": 1}})
    other.close()

    async with run_worker():
        await wait_until_async(gone(client, good.id), "the good job is done")
        await wait_until_async(lambda: bad.state() == "scheduled", "the bad job was given back")

    (rolled_back,) = [f for e, f in events(client, bad.id) if e.event == "rolled_back"]
    assert rolled_back["reason"] == "unknown_arguments"
