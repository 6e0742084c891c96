"""Workers that run jobs: when jobs begin, how they end, and how many Redis commands a job costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.errors import InvalidOption
from rq_core.worker import WorkerOptions
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.worker.conftest import RunWorker, event_types, events, gone


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


async def test_a_failing_job_runs_max_attempts_times_and_is_then_dead(
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


async def test_a_job_that_fails_once_is_retried_and_succeeds(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.fails_once.enqueue()

    async with run_worker():
        await wait_until_async(gone(client, handle.id), "the job is done")

    assert len(witness.lines("fails_once")) == 2
    assert event_types(client, handle.id)[-2:] == ["claimed", "succeeded"]


async def test_a_handler_that_gives_up_uses_no_further_attempt(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.gives_up.enqueue()

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "dead", "the job is dead")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]


async def test_retry_later_sets_the_time_of_the_next_attempt(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.later.enqueue()

    async with run_worker():
        await wait_until_async(gone(client, handle.id), "the job is done")

    retried = next(f for e, f in events(client, handle.id) if e.event == "retried")
    at = next(e.at_ms for e, _ in events(client, handle.id) if e.event == "retried")
    assert retried["due_ms"] == at + 20


async def test_a_job_of_an_unknown_task_is_given_back_to_its_queue_with_growing_delays(
    app: App, client: Client, run_worker: RunWorker
) -> None:
    """Checks a rolling deploy. A worker with old code gives back jobs of a new task, which newer workers know."""
    handle = app.enqueue("crew", "of_tomorrow", {"x": 1})

    async with run_worker():
        await wait_until_async(lambda: handle.state() == "scheduled", "the job was given back")
        job = client.run(client.calls.reads.job(handle.id, ["crew"]))

    assert job is not None
    assert job.fields["unknown"] == "1"
    assert "failed" not in job.fields
    (rolled_back,) = [f for e, f in events(client, handle.id) if e.event == "rolled_back"]
    assert rolled_back["reason"] == "unknown_task"


async def test_a_job_with_unknown_arguments_is_given_back_to_its_queue(
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


async def test_a_job_with_an_unreadable_spec_dies_and_the_worker_continues(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    bad, good = crew.function.enqueue(1), crew.function.enqueue(2)
    spoilt = b'task=function seq=1 since=1\n\xff{"task":'
    client.run(client.calls.delivery.ask([["HSET", "rqc:{crew}:jobs", bad.id, spoilt]]))

    async with run_worker():
        await wait_until_async(gone(client, good.id), "the good job is done")
        await wait_until_async(lambda: bad.state() == "dead", "the bad job is dead")

    assert [line["n"] for line in witness.lines("function")] == [2]


@pytest.mark.alone
async def test_delayed_jobs_run_promptly_and_never_early(
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


def works_for(client: Client, queues: Sequence[str]) -> bool:
    """Return whether a worker is registered as present in each of these queues."""
    found, _ = client.run(client.calls.reads.looks(queues))
    return all(queue.present for queue in found)


@pytest.mark.alone
async def test_a_job_in_any_queue_wakes_an_idle_worker(
    app: App, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a worker of several queues, which waits for the wake tokens of all its queues at once."""
    queues = ("one", "two", "three")
    client = app.client
    for queue in queues:
        client.run(client.calls.delivery.handshake(queue))
    async with run_worker(queues=queues):
        await wait_until_async(lambda: works_for(client, queues), "it has started")
        for n, queue in enumerate(queues * 3):
            await crew.coroutine.with_options(queue=queue).enqueue_async(n=n)
            await wait_until_async(
                lambda n=n: len(witness.lines()) == n + 1,  # type: ignore[misc]
                f"job {n} of queue {queue} ran at once",
                timeout=1.0,
            )


@pytest.mark.alone
async def test_no_job_of_a_paused_queue_runs_until_it_is_resumed(
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


async def test_a_worker_loads_the_functions_again_that_redis_forgot_and_runs_all_jobs(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    async with run_worker():
        for n in range(20):
            client.run(client.calls.delivery.ask([["FUNCTION", "FLUSH"]]))
            await crew.coroutine.enqueue_async(n=n)
        await wait_until_async(lambda: len(witness.lines()) == 20, "all jobs ran")

    assert sorted(line["n"] for line in witness.lines()) == list(range(20))


async def test_a_worker_claims_no_more_jobs_than_it_has_free_places(
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


def test_a_worker_settles_any_number_of_jobs_with_one_call_for_each_kind_of_settlement(
    client: Client,
) -> None:
    """Checks the calls that settle a hundred jobs."""
    from rq_core.model.job import Claim
    from rq_core.worker.settlement import Settlement, calls_of

    claims = [Claim("crew", f"j{n}", "1-1", 1, 0, 0, "{}") for n in range(100)]
    verdicts = ["complete", "retry", "rollback", "final"]
    settlements = [Settlement(c, verdicts[n % 4]) for n, c in enumerate(claims)]

    calls = calls_of("w-1", settlements)

    assert sorted(call.script for call, _ in calls) == ["complete", "fail", "rollback"]
    assert sum(len(group) for _, group in calls) == 100


@pytest.mark.slow
async def test_an_idle_worker_sends_at_most_two_commands_a_second(
    client: Client, run_worker: RunWorker
) -> None:
    async with run_worker(concurrency=100) as worker:
        await wait_until_async(lambda: worker.stats.turns >= 2, "the worker has settled down")
        loop = asyncio.get_running_loop()
        begun, turns = loop.time(), worker.stats.turns
        await wait_until_async(lambda: loop.time() - begun > 2.0, "two seconds have passed")
        took = loop.time() - begun
        turns = worker.stats.turns - turns

    # A turn is one command and each is preceded by one blocking wait; with T = 1 s there are three looks a second.
    # Measured per look: 2 commands in T/3 or 5 s, whichever is shorter.
    assert turns <= took / (crew.LEASE / 3) + 1


@pytest.mark.alone
async def test_an_idle_worker_runs_delayed_jobs_and_retries_of_every_queue_on_time(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a worker that waits for a token when a delayed job arrives. The worker wakes up at the job's due time."""
    queues = ("one", "two")
    for queue in queues:
        client.run(client.calls.delivery.handshake(queue))
    async with run_worker(queues=queues):
        await wait_until_async(lambda: works_for(client, queues), "it has started")
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


@pytest.mark.parametrize("option", ["grace", "timeout"])
@pytest.mark.parametrize("seconds", [float("nan"), -1.0, "5"])
def test_a_worker_refuses_an_invalid_number_of_seconds(option: str, seconds: Any) -> None:
    """Checks a negative number, a text, and nan, which would disorder the timers of the event loop."""
    with pytest.raises(InvalidOption, match=f"{option}=.* must be seconds"):
        WorkerOptions(**{option: seconds})
