"""What a worker does with jobs: runs them, retries them, buries them, gives back what it does not know."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.app.retry import RetryPolicy
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.errors import InvalidOption, LeaseLost
from rq_core.protocol import claims
from rq_core.worker import Worker, WorkerOptions, executor, handlers
from rq_core.worker.heartbeat import LeaseKeeper
from tests.kit import crew
from tests.kit.wait import wait_until, wait_until_async
from tests.worker.conftest import RunWorker, event_types, events


def gone(client: Client, *ids: str):
    return lambda: all(client.run(client.calls.reads.job(i, ["crew"])) is None for i in ids)


async def test_async_and_sync_handlers_run_in_one_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handles = [crew.coroutine.enqueue(n=1), crew.function.enqueue(n=2)]

    async with run_worker():
        await wait_until_async(gone(client, *(h.id for h in handles)), "both jobs are done")

    assert {(line["what"], line["n"]) for line in witness.lines()} == {
        ("coroutine", 1),
        ("function", 2),
    }
    for handle in handles:
        assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


async def test_a_failing_job_is_tried_max_attempts_times_and_then_dead(
    client: Client, run_worker: RunWorker, witness: crew.Witness, caplog: pytest.LogCaptureFixture
) -> None:
    handle = crew.failing.enqueue("it is broken")

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert [line["claim"] for line in witness.lines("failing")] == [1, 2, 3]
    log = events(client, handle.id)
    assert [str(e.event) for e, _ in log if e.event != "promoted"] == [
        "enqueued", "claimed", "retried", "claimed", "retried", "claimed", "died",
    ]  # fmt: skip
    died = log[-1][1]
    assert (died["reason"], died["failures"]) == ("attempts_spent", 3)
    assert (died["error"]["type"], died["error"]["message"]) == ("ValueError", "it is broken")
    assert "raise ValueError(message)" in died["error"]["traceback"]
    (said,) = [r for r in caplog.records if r.getMessage().startswith("job is dead")]
    assert said.job == handle.id  # type: ignore[attr-defined]


async def test_a_job_that_fails_once_succeeds_the_second_time(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.fails_once.enqueue()

    async with run_worker():
        await wait_until_async(gone(client, handle.id), "the job is done")

    assert len(witness.lines("fails_once")) == 2
    assert event_types(client, handle.id)[-2:] == ["claimed", "succeeded"]


async def test_a_handler_that_gives_up_spends_no_other_attempt(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.gives_up.enqueue()

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]


async def test_a_handler_says_when_it_wants_to_be_tried_again(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.later.enqueue()

    async with run_worker():
        await wait_until_async(gone(client, handle.id), "the job is done")

    retried = next(f for e, f in events(client, handle.id) if e.event == "retried")
    at = next(e.at_ms for e, _ in events(client, handle.id) if e.event == "retried")
    assert retried["due_ms"] == at + 20


async def test_an_unknown_task_goes_back_with_a_growing_pause_and_spends_no_attempt(
    app: App, client: Client, run_worker: RunWorker
) -> None:
    """Another worker may know it: in a rolling deploy, the new code's jobs must not die on the old workers."""
    handle = app.enqueue("crew", "of_tomorrow", {"x": 1})

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "scheduled", "the job was given back")
        job = client.run(client.calls.reads.job(handle.id, ["crew"]))

    assert job is not None
    assert job.fields["unknown"] == "1"
    assert "failed" not in job.fields
    (rolled_back,) = [f for e, f in events(client, handle.id) if e.event == "rolled_back"]
    assert rolled_back["reason"] == "unknown_task"


async def test_arguments_that_the_task_does_not_take_go_back_too(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    client.run(client.calls.enqueue.many([]))
    other = App(app.redis_url)
    handle = other.enqueue("crew", "function", {"n": "not a number"})
    other.close()

    async with run_worker():
        await wait_until_async(
            lambda: (
                client.run(client.calls.reads.job(handle.id, ["crew"])) is not None
                and client.run(client.calls.reads.job(handle.id, ["crew"])).state == "scheduled"
            ),  # type: ignore[union-attr]
            "the job was given back",
        )

    (rolled_back,) = [f for e, f in events(client, handle.id) if e.event == "rolled_back"]
    assert rolled_back["reason"] == "unknown_arguments"
    assert witness.lines() == []


async def test_a_spec_that_cannot_be_read_kills_the_job_not_the_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    bad, good = crew.function.enqueue(1), crew.function.enqueue(2)
    client.run(client.calls.delivery.ask([["HSET", "rqc:{crew}:jobs", bad.id, b'\xff{"task":']]))

    async with run_worker():
        await wait_until_async(gone(client, good.id), "the good job is done")
        await wait_until_async(lambda: bad.state() == "dead", "the bad job is dead")

    assert [line["n"] for line in witness.lines("function")] == [2]


async def test_an_async_handler_is_stopped_at_its_timeout(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.sleeping.with_options(timeout=0.1, max_attempts=1).enqueue(60)

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert events(client, handle.id)[-1][1]["error"]["type"] == "HandlerTimeout"
    assert witness.lines("end") == []


async def test_an_async_handler_that_ignores_its_timeout_is_a_failure_and_no_loss(
    client: Client, run_worker: RunWorker, witness: crew.Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "END_GRACE_S", 0.1)
    monkeypatch.setattr(handlers, "EXTENSION_GRACE_S", 0.5)
    handle = crew.tidying.with_options(timeout=0.1, max_attempts=1).enqueue(2.5 * crew.LEASE)

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")
        await wait_until_async(lambda: witness.lines("tidied"), "the handler came to its end")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]
    assert events(client, handle.id)[-1][1]["error"]["type"] == "HandlerTimeout"


async def test_a_sync_handler_is_told_at_its_timeout_and_its_late_success_counts_for_nothing(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.deaf.with_options(timeout=0.1, max_attempts=1).enqueue(0.5)

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")
        await wait_until_async(lambda: witness.lines("end"), "the thread came to its end")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]


@pytest.mark.alone
async def test_delayed_jobs_run_in_time_and_never_early(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    async with run_worker():
        await wait_until_async(
            lambda: client.run(client.calls.reads.queues()) == ["crew"], "the worker has started"
        )
        handle = crew.coroutine.with_options(delay=0.3).enqueue()
        await wait_until_async(gone(client, handle.id), "the job is done")

    log = {str(e.event): (e, f) for e, f in events(client, handle.id)}
    due = log["enqueued"][1]["due_ms"]
    assert 0 <= log["claimed"][0].at_ms - due <= 500


@pytest.mark.alone
async def test_every_queue_of_an_idle_worker_wakes_it(
    app: App, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """A worker that waits for a token of one queue only would sleep for seconds beside a full other one."""
    queues = ("one", "two", "three")
    async with run_worker(queues=queues):
        await wait_until_async(
            lambda: set(queues) <= set(app.client.run(app.client.calls.reads.queues())),
            "it has started",
        )
        for n, queue in enumerate(queues * 3):
            await crew.coroutine.with_options(queue=queue).enqueue_async(n=n)
            await wait_until_async(
                lambda n=n: len(witness.lines()) == n + 1,  # type: ignore[misc]
                f"job {n} of queue {queue} ran at once",
                timeout=1.0,
            )


@pytest.mark.alone
async def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    async with run_worker() as worker:
        await wait_until_async(
            lambda: client.run(client.calls.reads.queues()) == ["crew"], "the worker has started"
        )
        client.run(client.calls.admin.configure("crew", {"paused": 1}, by="tester"))
        handle = crew.coroutine.enqueue()
        before = worker.stats.turns
        await wait_until_async(lambda: worker.stats.turns > before, "the worker has looked again")
        assert handle.state() == "ready"
        client.run(client.calls.admin.configure("crew", {"paused": 0}, by="tester"))
        await wait_until_async(gone(client, handle.id), "the job is done", timeout=1.0)


async def test_cancelling_a_running_async_job_stops_it_within_two_heartbeats(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.sleeping.enqueue(60)
    async with run_worker():
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        assert handle.cancel(why="no longer wanted") == "cancelling"
        assert handle.state() == "cancelling"
        await wait_until_async(gone(client, handle.id), "it stopped", timeout=crew.LEASE)

    assert witness.lines("end") == []
    assert event_types(client, handle.id) == [
        "enqueued", "claimed", "cancel_requested", "cancelled",
    ]  # fmt: skip


async def test_a_sync_handler_learns_that_it_is_cancelled(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.dozing.enqueue(60)
    async with run_worker():
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        handle.cancel()
        await wait_until_async(gone(client, handle.id), "it stopped", timeout=crew.LEASE)

    assert event_types(client, handle.id)[-1] == "cancelled"


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Leases follow liveness: the heartbeat is neither on the loop nor on the job's thread."""
    handle = crew.hogging.enqueue(2.5 * crew.LEASE)
    async with run_worker(), run_worker():
        await wait_until_async(gone(client, handle.id), "the job is done")

    assert len(witness.lines("begin")) == 1
    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


async def test_jobs_of_ten_leases_are_claimed_once(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """On the loop and in a thread, with another worker that looks for leases that are over."""
    handles = [crew.sleeping.enqueue(10 * crew.LEASE), crew.deaf.enqueue(10 * crew.LEASE)]
    async with run_worker(), run_worker():
        await wait_until_async(gone(client, *(h.id for h in handles)), "both are done", timeout=30)

    for handle in handles:
        assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


async def test_an_async_handler_whose_claim_is_lost_is_cancelled_and_settles_nothing(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Another worker has the job now; whatever this one still did would be done twice."""
    handle = crew.tidying.enqueue(0.0)
    async with run_worker() as worker:
        await wait_until_async(lambda: witness.lines("begin"), "it runs")
        (running,) = worker._handlers.executor.running.values()
        lose(client, handle.id, running.claim.fence)
        await wait_until_async(lambda: witness.lines("tidied"), "it was cancelled")
        await wait_until_async(lambda: not worker._handlers.executor.running, "its place is free")

    assert isinstance(running.ending, LeaseLost)
    # It was given back by somebody else; this worker has said nothing.
    assert event_types(client, handle.id)[:3] == ["enqueued", "claimed", "rolled_back"]
    assert "settlement_refused" not in event_types(client, handle.id)


async def test_a_sync_handler_whose_claim_is_lost_is_told(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.dozing.enqueue(60)
    async with run_worker() as worker:
        await wait_until_async(lambda: witness.lines("begin"), "it runs")
        (running,) = worker._handlers.executor.running.values()
        lose(client, handle.id, running.claim.fence)
        await wait_until_async(lambda: running.context.cancelled, "it is told")
        await wait_until_async(lambda: not worker._handlers.executor.running, "its place is free")

    assert isinstance(running.ending, LeaseLost)
    assert witness.lines("end") == []


def lose(client: Client, job_id: str, fence: str) -> None:
    """End a claim as nobody but its holder should, and keep the job from being claimed again."""
    client.run(client.calls.admin.configure("crew", {"paused": 1}))
    call = claims.rollback("crew", "w-x", [(job_id, fence, "lost", "null", "", 0)])
    assert client.run(call) == {job_id: "ready"}


def test_no_claim_is_extended_beyond_its_time(client: Client, app: App) -> None:
    """A handler that ignores its end would keep its job, and the places in its caps, for ever."""
    now = [100.0]
    client.run(client.calls.delivery.handshake("crew"))
    client.run(client.calls.enqueue.many([crew.sleeping.job(1.0) for _ in range(2)]))
    limited, free = client.run(claims.claim("crew", "w-1", 2)).jobs
    keeper = LeaseKeeper(client, "w-1", on_lost=_never, on_cancelling=_never, clock=lambda: now[0])
    keeper.hold(limited, 101.0)
    keeper.hold(free, None)

    moved = []
    for now[0] in (100.5, 101.5):
        before = client.run(client.calls.reads.snapshot("crew"))["leases"]
        began = client.run(client.calls.delivery.handshake("crew")).now_ms
        wait_until(
            lambda began=began: client.run(client.calls.delivery.handshake("crew")).now_ms > began,
            "time passes",
        )  # type: ignore[misc]
        keeper.beat()
        after = client.run(client.calls.reads.snapshot("crew"))["leases"]
        moved.append([after[each.id] > before[each.id] for each in (limited, free)])

    assert moved == [[True, True], [False, True]]


def _never(*_: str) -> None:
    raise AssertionError


async def test_burst_ends_when_nothing_is_ready_running_or_due(
    app: App, client: Client, witness: crew.Witness
) -> None:
    app.enqueue_many(crew.function.job(n=n) for n in range(25))
    tomorrow = crew.function.with_options(delay=86_400).enqueue(99)
    worker = Worker(app, WorkerOptions(queues=("crew",), concurrency=4, burst=True))

    async with asyncio.timeout(20):
        await worker.run()

    assert len(witness.lines("function")) == 25
    assert tomorrow.state() == "scheduled"


async def test_forgotten_scripts_are_loaded_again_without_anybody_noticing(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    async with run_worker():
        for n in range(20):
            client.run(client.calls.delivery.ask([["FUNCTION", "FLUSH"]]))
            await crew.coroutine.enqueue_async(n=n)
        await wait_until_async(lambda: len(witness.lines()) == 20, "all jobs ran")

    assert sorted(line["n"] for line in witness.lines()) == list(range(20))


async def test_a_worker_claims_no_more_than_it_can_start(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    for _ in range(10):
        crew.sleeping.enqueue(60)
    async with run_worker(concurrency=3, grace=0.0):
        await wait_until_async(lambda: len(witness.lines("begin")) == 3, "three jobs run")
        counts = client.run(client.calls.reads.counts("crew"))
        assert (counts.running, sum(counts.ready.values())) == (3, 7)

    counts = client.run(client.calls.reads.counts("crew"))
    assert (counts.running, sum(counts.ready.values())) == (0, 10)


def test_a_worker_reports_and_claims_in_one_round_trip(client: Client) -> None:
    """Group commit: however many jobs finished, a turn is one pipeline of one command per kind."""
    from rq_core.model.job import Claim
    from rq_core.worker.settlement import Settlement, calls_of

    claims = [Claim("crew", f"j{n}", "1-1", 1, 0, 0, "{}") for n in range(100)]
    verdicts = ["complete", "retry", "rollback", "final"]
    settlements = [Settlement(c, verdicts[n % 4]) for n, c in enumerate(claims)]

    calls = calls_of("w-1", settlements)

    assert sorted(call.script for call, _ in calls) == ["complete", "fail", "rollback"]
    assert sum(len(group) for _, group in calls) == 100


async def test_an_idle_worker_sends_at_most_two_commands_a_second(
    client: Client, run_worker: RunWorker
) -> None:
    async with run_worker(concurrency=100) as worker:
        await wait_until_async(lambda: worker.stats.turns >= 2, "the worker has settled down")
        loop = asyncio.get_running_loop()
        begun, turns = loop.time(), worker.stats.turns
        await wait_until_async(lambda: loop.time() - begun > 2.0, "two seconds have passed")

    # A turn is one command and each is preceded by one blocking wait; with T = 1 s there are three looks a second.
    # Measured per look: 2 commands in T/3 or 5 s, whichever is shorter.
    assert worker.stats.turns - turns <= 2.0 / (crew.LEASE / 3) + 1


@pytest.mark.parametrize("task", [crew.raising, crew.raising_in_thread], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "Ending"])
async def test_whatever_a_handler_raises_is_a_failure_of_its_job_only(
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


class Unruly(Exception):
    """Ends the process of whoever asks for its words, or for its notes."""

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
async def test_what_is_asked_about_a_failure_cannot_end_the_worker(
    valkey_url: str, kind: str, where: str, how: type[BaseException]
) -> None:
    """`sys.exit()` there ended the worker, with all that it ran."""
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
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(
    client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any
) -> None:
    """A library's cancelled future ends in the handler; given back unspent, the job would run for ever."""
    handle = task.enqueue("CancelledError")

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert "rolled_back" not in event_types(client, handle.id)


@pytest.mark.parametrize("task", [crew.raising, crew.raising_in_thread], ids=lambda t: t.name)
async def test_an_error_that_cannot_say_what_it_is_is_reported_all_the_same(
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


async def test_a_job_that_timed_out_in_a_thread_may_run_again_on_the_same_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """The old handler still runs when the new claim begins; its end must not make the worker forget the new one."""
    handle = crew.deaf.with_options(timeout=1.0, max_attempts=2).enqueue(2.5)
    async with run_worker() as worker:
        await wait_until_async(lambda: len(witness.lines("begin")) == 2, "it runs again")
        await wait_until_async(lambda: len(witness.lines("end")) == 1, "the first thread ended")
        assert [claim for _, claim, _ in worker._handlers.executor.running] == [handle.id]
        await wait_until_async(lambda: handle.state() == "dead", "its attempts are spent")


async def test_a_cancelled_handler_may_take_its_time_to_clean_up(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Every heartbeat says again that the job is unwanted; the handler is interrupted once."""
    handle = crew.tidying.enqueue(1.2 * crew.LEASE)
    async with run_worker():
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        handle.cancel()
        await wait_until_async(gone(client, handle.id), "it stopped")

    assert len(witness.lines("tidied")) == 1


async def test_an_async_handler_that_ignores_the_end_is_given_back_all_the_same(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.tidying.enqueue(4.0)
    async with run_worker(grace=0.0):
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")

    job = client.run(client.calls.reads.job(handle.id, ["crew"]))
    assert job is not None
    assert job.state == "ready"
    assert "failed" not in job.fields
    await wait_until_async(lambda: witness.lines("tidied"), "the handler came to its end")


@pytest.mark.parametrize("n", [-1, -2], ids=["error", "exit"])
async def test_a_check_of_arguments_that_breaks_gives_the_job_back_and_harms_no_other(
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


async def test_burst_ends_at_a_paused_queue(app: App, client: Client) -> None:
    handle = crew.function.enqueue(1)
    client.run(client.calls.admin.configure("crew", {"paused": 1}))

    async with asyncio.timeout(10):
        await Worker(app, WorkerOptions(queues=("crew",), burst=True)).run()

    assert handle.state() == "ready"


@pytest.mark.parametrize("scope", ["queue", "task=function"])
async def test_burst_ends_at_a_cap_of_0(app: App, client: Client, scope: str) -> None:
    handle = crew.function.enqueue(1)
    client.run(client.calls.caps.set("crew", [(scope, "0", -1)]))

    async with asyncio.timeout(10):
        await Worker(app, WorkerOptions(queues=("crew",), burst=True)).run()

    assert handle.state() == "ready"
    assert client.run(client.calls.reads.counts("crew")).waiting == (scope != "queue")


@pytest.mark.parametrize("concurrency", [1, 100])
async def test_burst_says_what_it_leaves_once(
    app: App,
    client: Client,
    witness: crew.Witness,
    caplog: pytest.LogCaptureFixture,
    concurrency: int,
) -> None:
    """A rate that is spent holds jobs back for hours; a worker that ended without a word looked done."""
    client.run(client.calls.caps.set("crew", [("task@3600s=coroutine", "1/3600000ms/1", -1)]))
    for n in range(3):
        job = app.job("crew", "coroutine", {"n": n})
        client.run(client.calls.enqueue.many([job._replace(lane="2+task@3600s=coroutine")]))
    options = WorkerOptions(queues=("crew",), burst=True, concurrency=concurrency)

    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(20):
            await Worker(app, options).run()

    assert len(witness.lines("coroutine")) == 1
    (said,) = [r.getMessage() for r in caplog.records if "left" in r.getMessage()]
    assert said == (
        "jobs are left that may not run now: 2 in crew; `rq-core caps crew` says what they wait for"
    )


async def test_burst_works_off_what_waits_in_lanes(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Jobs with scopes are in no list of ready ones."""
    client.run(client.calls.caps.set("crew", [("task=coroutine", "1", -1)]))
    app.enqueue_many(crew.coroutine.job(n=n) for n in range(30))
    counts = client.run(client.calls.reads.counts("crew"))
    assert (counts.waiting, counts.open_lanes, sum(counts.ready.values())) == (30, 1, 0)

    async with asyncio.timeout(20):
        await Worker(app, WorkerOptions(queues=("crew",), concurrency=4, burst=True)).run()

    assert len(witness.lines("coroutine")) == 30
    assert client.run(client.calls.reads.counts("crew")).waiting == 0
    assert client.run(client.calls.reads.snapshot("crew"))["state"] == {}


@pytest.mark.alone
async def test_delayed_jobs_and_retries_are_on_time_in_every_queue_of_an_idle_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """The wait for tokens may have begun before the due time was known; it must not be slept through."""
    queues = ("one", "two")
    async with run_worker(queues=queues):
        await wait_until_async(
            lambda: set(queues) <= set(client.run(client.calls.reads.queues())), "it has started"
        )
        for queue in queues:
            delayed = crew.coroutine.with_options(queue=queue, delay=0.3).enqueue()
            retried = crew.fails_once.with_options(queue=queue).enqueue()
            await wait_until_async(
                lambda queue=queue, ids=(delayed.id, retried.id): all(  # type: ignore[misc]
                    client.run(client.calls.reads.job(i, [queue])) is None for i in ids
                ),
                "both are done",
                timeout=2.0,
            )


async def test_a_job_that_falls_due_in_the_grace_does_not_end_it(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """The worker woke to report nothing, fell over that, and gave back what had the time to finish."""
    handle = crew.sleeping.enqueue(1.0)
    async with run_worker(grace=10.0) as worker:
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        crew.coroutine.with_options(delay=0.4).enqueue()
        turns = worker.stats.turns
        await wait_until_async(lambda: worker.stats.turns > turns, "it knows what will be due")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.parametrize(
    "options", [{}, {"burst": True}, {"max_jobs": 1}], ids=["stopped", "burst", "retired"]
)
async def test_a_thread_that_does_not_come_back_holds_up_no_end(
    valkey_url: str, options: dict[str, Any]
) -> None:
    """Its job was reported at its timeout. A worker that retires waited for it for ever, and took nothing else."""
    release = threading.Event()
    with App(valkey_url) as app:

        @app.task(queue="q", timeout=0.1, retry=crew.quick)
        def hangs() -> None:
            release.wait(60)

        handle = hangs.with_options(max_attempts=1).enqueue()
        worker = Worker(app, WorkerOptions(queues=("q",), grace=60.0, **options))
        running = asyncio.create_task(worker.run())
        try:
            await wait_until_async(lambda: handle.state() == "dead", "it is reported")
            if not options:
                worker.stop()
            async with asyncio.timeout(15):
                assert await running is False
        finally:
            release.set()


async def test_workers_that_stop_together_leave_one_token(client: Client, app: App) -> None:
    """Each puts one back that it may have taken; two would be a finding of the doctor and of `audit verify`."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(app.redis_url)) for _ in range(8)]
        await asyncio.gather(*(each.run(each.calls.delivery.handshake("crew")) for each in clients))
        for _ in range(5):
            await asyncio.gather(*(each.return_token("crew") for each in clients))

    assert client.run(client.calls.reads.snapshot("crew"))["wake"] == ["1"]


@pytest.mark.parametrize("option", ["grace", "timeout"])
@pytest.mark.parametrize("seconds", [float("nan"), -1.0, "5"])
def test_seconds_that_are_none_are_refused(option: str, seconds: Any) -> None:
    """A timeout that is not a number would leave the loop's timers in no order."""
    with pytest.raises(InvalidOption, match=f"{option}=.* must be seconds"):
        WorkerOptions(**{option: seconds})
