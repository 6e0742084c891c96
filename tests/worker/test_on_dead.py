"""Hooks for dead jobs. A hook runs for each death, even if the worker that reported the death is killed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.doctor import examine
from rq_core.model.job import spec_of
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.plan import Pause, Plan, Send
from rq_core.worker import Worker, WorkerOptions, dead_hooks
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.wait import wait_until, wait_until_async
from tests.worker.conftest import RunWorker


def told(witness: crew.Witness, job_id: str) -> list[dict[str, Any]]:
    return [line["facts"] for line in witness.lines("mourned") if line["dead"] == job_id]


async def test_the_hook_of_dead_jobs_runs_once_and_promptly_for_each_death(
    client: Client,
    run_worker: RunWorker,
    witness: crew.Witness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_hooks, "LOOK_EVERY_S", 3600.0)
    before = time.time() * 1000
    async with run_worker():
        jobs = [crew.mortal.enqueue("no"), crew.mortal.enqueue("give up")]
        jobs.append(crew.mortal_async.enqueue())
        silent = crew.failing.enqueue()
        for job in jobs:
            await wait_until_async(lambda j=job: told(witness, j.id), "told")  # type: ignore[misc]
        await wait_until_async(lambda: silent.state() == "dead", "that one is dead, too")
        jobs.append(crew.mortal.enqueue("again"))
        await wait_until_async(lambda: told(witness, jobs[-1].id), "told of a later one")

    (facts,) = told(witness, jobs[0].id)
    assert before <= facts.pop("died_at_ms") <= time.time() * 1000
    assert facts.pop("event").startswith(jobs[0].id)
    assert facts == {
        "id": jobs[0].id, "queue": "crew", "task": "mortal", "arguments": {"how": "no"},
        "reason": "attempts_spent", "claims": 3, "failures": 3, "losses": 0,
    }  # fmt: skip
    (gave_up,) = told(witness, jobs[1].id)
    assert gave_up["reason"] == "gave_up"
    assert [len(told(witness, job.id)) for job in jobs] == [1, 1, 1, 1]
    assert told(witness, silent.id) == []
    assert examine(client.run(client.calls.reads.snapshot("crew"))) == []


@pytest.mark.parametrize("options", [{}, {"burst": True}], ids=["works on", "burst"])
async def test_the_hook_of_dead_jobs_runs_for_deaths_before_the_workers_first_search_for_deaths(
    app: App, client: Client, witness: crew.Witness, options: dict[str, Any]
) -> None:
    """Checks deaths among a worker's first settlements, before its first search for deaths.

    A burst ends only after these hooks have run.
    """
    handles = [crew.mortal.enqueue("give up") for _ in range(20)]
    worker = Worker(app, WorkerOptions(queues=("crew",), grace=5.0, **options))
    running = asyncio.create_task(worker.run())
    if not options:
        await wait_until_async(
            lambda: len(witness.lines("mourned")) == 20,
            lambda: f"{len(witness.lines('mourned'))} of 20 hooks are told",
        )
        worker.stop()
    async with asyncio.timeout(30):
        assert await running

    assert [len(told(witness, handle.id)) for handle in handles] == [1] * 20


async def test_the_hook_of_dead_jobs_runs_for_the_first_deaths_after_redis_lost_everything(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a Redis that also lost its mark: the time up to which all hooks have run."""
    async with run_worker():
        first = crew.mortal.enqueue("give up")
        await wait_until_async(lambda: told(witness, first.id), "the worker works")
        client.run(client.calls.delivery.ask([["FLUSHALL"]]))
        handles = [crew.mortal.enqueue("give up") for _ in range(20)]
        await wait_until_async(
            lambda: len(witness.lines("mourned")) == 21,
            lambda: f"{len(witness.lines('mourned')) - 1} of 20 hooks are told",
        )

    assert [len(told(witness, handle.id)) for handle in handles] == [1] * 20


async def test_the_hook_of_dead_jobs_does_not_wait_for_the_next_search_for_deaths(
    run_worker: RunWorker, witness: crew.Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a death after the search has asked Redis. The hook does not wait for the next search."""
    monkeypatch.setattr(dead_hooks, "LOOK_EVERY_S", 3600.0)
    look = dead_hooks.DeathWatch.look
    looks = 0

    def slow_look(watch: dead_hooks.DeathWatch) -> Plan[bool]:
        nonlocal looks
        looks += 1
        more = yield from look(watch)
        if looks == 1:
            handle = crew.mortal.enqueue("give up")
            while not worker.stats.failed:
                yield Pause(0.01)
            handles.append(handle)
        return more

    handles: list[Any] = []
    monkeypatch.setattr(dead_hooks.DeathWatch, "look", slow_look)
    async with run_worker() as worker:
        await wait_until_async(lambda: handles and told(witness, handles[0].id), "told")


async def test_a_search_for_deaths_follows_each_death_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks a death within the pause before a search. The search may leave this death out, because its millisecond is
    not over, so another search must follow."""
    monkeypatch.setattr(dead_hooks, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(dead_hooks, "NEXT_MS_S", 0.1)
    death, loop, searches = asyncio.Event(), asyncio.get_running_loop(), []

    async def search(_: object) -> bool:
        searches.append(loop.time())
        if len(searches) == 1:
            death.set()
            loop.call_later(0.05, death.set)
        return False

    watch = SimpleNamespace(look=lambda: None)
    monkeypatch.setattr(dead_hooks, "death_watches", lambda *_: {"crew": watch})
    client: Any = SimpleNamespace(run=search)
    group: Any = SimpleNamespace(death=death, queues={"crew": SimpleNamespace(absent=False)})
    searching = asyncio.create_task(dead_hooks.tell_of_deaths(client, {}, group, asyncio.Event()))
    try:
        await wait_until_async(lambda: len(searches) == 3, "a search follows the second death")
    finally:
        searching.cancel()


@pytest.mark.slow
def test_the_hook_of_dead_jobs_runs_for_a_job_that_died_as_poison(
    client: Client, app: App, witness: crew.Witness
) -> None:
    """Checks a job that kills each of its workers. No worker reports the death of this job."""
    handle = crew.mortal.with_options(max_losses=2).enqueue("poison")
    with worker_process(app.redis_url, witness, "--processes", "2"):
        wait_until(lambda: told(witness, handle.id), "the hook is told", timeout=60)

    (facts, *_) = told(witness, handle.id)
    assert (facts["reason"], facts["losses"]) == ("poison", 2)


def die_untold(client: Client, how: str = "no", spec: bytes | None = None) -> str:
    """Let a job die while no worker runs, and return its id. If ``spec`` is given, it first replaces the job's JSON."""
    client.run(client.calls.delivery.handshake("crew"))
    client.run(dead_hooks.DeathWatch(client.calls, "crew", crew.app.tasks).look())
    handle = crew.mortal.enqueue(how)
    wait_until(
        lambda: (
            client.run(client.calls.delivery.handshake("crew")).now_ms
            > int(client.run(client.calls.reads.snapshot("crew"))["meta"]["on_dead_ms"]) + 2
        ),
        "the clock goes on",
    )
    if spec is not None:
        jobs = "rqc:{crew}:jobs"
        (value,) = client.run(client.calls.delivery.ask([["HGET", jobs, handle.id]]))
        head = value.removesuffix(spec_of(value)).encode()
        client.run(client.calls.delivery.ask([["HSET", jobs, handle.id, head + spec]]))
    (claim,) = client.run(claims.claim("crew", "w-1", 1)).jobs
    failed = (claim.id, claim.fence, "final", 0, "gave_up", "null")
    client.run(claims.fail("crew", "w-1", [failed]))
    return handle.id


async def test_the_next_worker_runs_the_hook_for_a_death_that_an_ended_worker_missed(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a worker that ended after the death, before it enqueued the hook's job."""
    job = die_untold(client)

    async with run_worker():
        await wait_until_async(lambda: told(witness, job), "told")

    assert len(told(witness, job)) == 1


def test_a_worker_that_finds_a_death_after_another_worker_does_not_run_the_hook_again(
    client: Client, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a death that another worker found first. The job of its hook has already left the queue."""
    job = die_untold(client)
    died = client.run(client.calls.reads.snapshot("crew"))["dead"][job]
    wait_until(
        lambda: client.run(client.calls.delivery.handshake("crew")).now_ms > died + 1,
        "a look finds it",
    )
    first, late = (dead_hooks.DeathWatch(client.calls, "crew", app.tasks) for _ in range(2))
    hand_over = late._hand_over

    def after_the_other(ids: list[str]) -> Plan[None]:
        client.run(first.look())
        (hook,) = client.run(claims.claim("crew", "w-2", 10)).jobs
        client.run(claims.complete("crew", "w-2", [(hook.id, hook.fence)]))
        yield from hand_over(ids)

    monkeypatch.setattr(late, "_hand_over", after_the_other)
    client.run(late.look())

    assert first.told == 1
    assert sum(client.run(client.calls.reads.counts("crew")).ready.values()) == 0


@pytest.mark.parametrize(
    "spec",
    [b"\xff{", b'{"task":"mortal","args":?}}', b'{"task":"mortal","args":[1]}'],
    ids=["no JSON", "no arguments in JSON", "no mapping"],
)
async def test_the_hook_of_dead_jobs_runs_for_an_unreadable_job(
    client: Client, run_worker: RunWorker, witness: crew.Witness, spec: bytes
) -> None:
    """Checks that the search continues after the unreadable job. Hooks for later deaths run, too."""
    job = die_untold(client, spec=spec)

    async with run_worker():
        other = crew.mortal.enqueue("give up")
        await wait_until_async(lambda: told(witness, other.id), "told of another")
        await wait_until_async(lambda: told(witness, job), "told of the one that is unreadable")

    (facts,) = told(witness, job)
    assert facts["arguments"] == {}


def test_the_hook_of_dead_jobs_runs_for_many_jobs_that_die_together(
    client: Client, app: App
) -> None:
    count = 2 * dead_hooks.DEATHS_MAX + 7
    client.run(client.calls.delivery.handshake("crew"))
    client.run(dead_hooks.DeathWatch(client.calls, "crew", crew.app.tasks).look())
    client.run(client.calls.enqueue.many([crew.mortal.job(str(n)) for n in range(count)]))
    while jobs := client.run(claims.claim("crew", "w-1", 190)).jobs:
        failed = [(c.id, c.fence, "final", 0, "gave_up", "null") for c in jobs]
        client.run(claims.fail("crew", "w-1", failed))

    wait_until(
        lambda: (
            client.run(dead_hooks.DeathWatch(client.calls, "crew", crew.app.tasks).look()),
            sum(client.run(client.calls.reads.counts("crew")).ready.values()) == count,
        )[1],
        "each has a job of its hook",
    )


def looked(client: Client, watch: dead_hooks.DeathWatch, ahead_ms: int) -> None:
    """Let the watch search for deaths once, as if Redis' clock were ``ahead_ms`` ahead."""
    plan = watch.look()
    replies: Any = None
    with contextlib.suppress(StopIteration):
        while True:
            step = plan.send(replies)
            assert isinstance(step, Send)
            replies = client.run(client.calls.delivery.ask(step.commands))
            if ["TIME"] in step.commands:
                seconds, micros = (int(part) for part in replies[step.commands.index(["TIME"])])
                now = seconds * 1_000_000 + micros + ahead_ms * 1_000
                replies[step.commands.index(["TIME"])] = [now // 1_000_000, now % 1_000_000]


@pytest.mark.parametrize(
    "ahead_ms, elapsed, later_ms, same_worker",
    [(10_000, 5.0, 0, True), (10_000, 5.0, 0, False), (2_000, 5.0, 5_000, True)],
    ids=["far", "far, and another worker", "less than a look"],
)
def test_the_hook_of_dead_jobs_runs_for_a_death_after_the_clock_went_back(
    client: Client, app: App, ahead_ms: int, elapsed: float, later_ms: int, *, same_worker: bool
) -> None:
    """Checks a death whose time is before the mark: the time up to which all hooks have run."""
    clock = iter([0.0, 0.0, elapsed, elapsed])

    def watch() -> dead_hooks.DeathWatch:
        tasks = crew.app.tasks
        return dead_hooks.DeathWatch(client.calls, "crew", tasks, clock=lambda: next(clock))

    client.run(client.calls.delivery.handshake("crew"))
    before = watch()
    looked(client, before, ahead_ms)
    crew.mortal.enqueue("no")
    (claim,) = client.run(claims.claim("crew", "w-1", 1)).jobs
    failed = (claim.id, claim.fence, "final", 0, "gave_up", "null")
    client.run(claims.fail("crew", "w-1", [failed]))
    ((died, _),) = [
        (at, i) for i, at in client.run(client.calls.reads.snapshot("crew"))["dead"].items()
    ]
    assert died < int(client.run(client.calls.reads.snapshot("crew"))["meta"]["on_dead_ms"])

    # One that sees the death's millisecond as past.
    wait_until(
        lambda: client.run(client.calls.delivery.handshake("crew")).now_ms > died + 1,
        "the clock goes on",
    )
    looked(client, before if same_worker else watch(), later_ms and later_ms - 2_000)

    assert sum(client.run(client.calls.reads.counts("crew")).ready.values()) == 1
