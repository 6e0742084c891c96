"""The progress and the streams of jobs on a real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rq_core import App, Batch, Chunk, Job, JobHandle, RetryPolicy, WaitRefused, current_job
from rq_core.connections.client import Client
from rq_core.doctor import diagnose
from rq_core.protocol.calls.shows import Show
from rq_core.worker.execution import shows
from tests.kit import crew
from tests.kit.batching import Event
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import RunWorker, event_types, gone

QUEUE = "crew"


@pytest.fixture
def own(app: App) -> Iterator[App]:
    """Return an app of its own for this test, on the server of the crew's app."""
    made = App(app.redis_url)
    made.queue(QUEUE, lease=crew.LEASE)
    yield made
    made.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Sequence[Show]]]:
    """Return a list to which each call of ``show`` appends its time and its records."""
    calls: list[tuple[float, Sequence[Show]]] = []
    original = shows.show_jobs

    def noted(queue: str, worker: str, records: Sequence[Show]) -> Any:
        calls.append((time.monotonic(), records))
        return original(queue, worker, records)

    monkeypatch.setattr(shows, "show_jobs", noted)
    return calls


async def chunks_of(handle: JobHandle[Any], after: int = 0) -> list[Chunk]:
    return [chunk async for chunk in handle.stream_async(after=after)]


async def test_a_million_progress_reports_in_a_loop_cause_only_two_calls_a_second(
    own: App, client: Client, sent: list[tuple[float, Sequence[Show]]]
) -> None:
    @own.task(queue=QUEUE)
    def counts(n: int) -> None:
        job = current_job()
        for done in range(1, n + 1):
            job.progress(done, n, "counting")

    handle = counts.enqueue(n=1_000_000)
    async with working(own, queues=(QUEUE,), grace=5.0):
        await wait_until_async(gone(client, handle.id), "it has ended", timeout=60)

    took = sent[-1][0] - sent[0][0]
    assert len(sent) <= 2 * took + 2, f"{len(sent)} calls in {took:.1f} s"
    assert [record.text for record in sent[-1][1]] == ["1000000/1000000 counting"]


async def test_the_last_progress_and_chunk_are_sent_before_the_job_ends(
    own: App, client: Client
) -> None:
    @own.task(queue=QUEUE, retry=RetryPolicy(max_attempts=1))
    async def works(how: str) -> None:
        current_job().progress(1, 4, "first")
        current_job().progress(3, 4, how)
        current_job().emit(how)
        if how == "fails":
            raise ValueError(how)

    good, bad = works.enqueue(how="ends"), works.enqueue(how="fails")
    async with working(own, queues=(QUEUE,), grace=5.0):
        for handle in (good, bad):
            assert [(c.number, c.text, c.claim) for c in await chunks_of(handle)] == [
                (1, "fails" if handle is bad else "ends", 1)
            ]

        assert await good.progress_async() is None
        last = await bad.progress_async()
        assert last is not None
        assert (last.done, last.total, last.text, last.share) == (3, 4, "fails", 0.75)
    assert event_types(client, bad.id)[-1] == "died"
    assert not diagnose(client, QUEUE, sleep=lambda _: None)


async def test_a_progress_or_chunk_that_is_not_valid_unicode_does_not_end_the_worker(
    own: App,
) -> None:
    @own.task(queue=QUEUE)
    async def emits(text: str) -> None:
        current_job().progress(1, 2, "\ud800 half")
        current_job().emit("\ud800\udcff\x1b[2J")
        current_job().emit(text)

    handles = [emits.enqueue(text=text) for text in ("one", "two")]
    async with working(own, queues=(QUEUE,), grace=5.0):
        for handle, text in zip(handles, ("one", "two"), strict=True):
            assert [c.text for c in await chunks_of(handle)] == ["??\x1b[2J", text]


@pytest.mark.slow
async def test_a_watcher_gets_each_change_of_progress_until_the_job_ends(own: App) -> None:
    @own.task(queue=QUEUE)
    async def climbs() -> None:
        for n in range(3):
            current_job().progress(n, 3)
            await asyncio.sleep(1.2)

    handle = climbs.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        found = [each.done async for each in handle.watch_async(every=0.1)]

    assert found == [0, 1, 2]


async def test_the_first_chunk_of_each_claim_is_marked_as_the_beginning_of_a_claim(
    own: App,
) -> None:
    @own.task(queue=QUEUE, retry=RetryPolicy(backoff="fixed", base=0.01, jitter=False))
    async def again() -> None:
        current_job().emit("one")
        current_job().emit("two")
        if current_job().claim == 1:
            raise ValueError("no")

    handle = again.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        found = await chunks_of(handle)

    assert [(c.number, c.text, c.claim, c.begins_claim) for c in found] == [
        (1, "one", 1, True),
        (2, "two", 1, False),
        (3, "one", 2, True),
        (4, "two", 2, False),
    ]


@pytest.mark.slow
async def test_an_isolated_handler_shows_its_progress_and_its_stream(run_worker: RunWorker) -> None:
    handle = crew.shows_apart.enqueue(chunks=500)
    async with run_worker(concurrency=1):
        seen = [each async for each in handle.watch_async(every=0.05)]
        found = await chunks_of(handle)

    assert seen[-1].text == "apart"
    assert [c.text for c in found] == [*(f"apart {n}" for n in range(1, 501)), "last"]


async def test_each_member_of_a_batch_has_its_own_progress_and_stream(own: App) -> None:
    @own.task(queue=QUEUE, batch=Batch(size=3, linger=2.0))
    async def many(jobs: list[Job[Event]]) -> None:
        for job in jobs:
            job.progress(job.args.n, 10)
            job.emit(f"member {job.args.n}")
        with pytest.raises(Exception, match="each of its jobs"):
            current_job().progress(1)
        await asyncio.sleep(1)

    handles = [many.enqueue(Event(n)) for n in range(3)]
    async with working(own, queues=(QUEUE,), grace=5.0):
        for n, handle in enumerate(handles):
            seen = [each.done async for each in handle.watch_async(every=0.1)]
            assert n == 0 or seen in ([], [n])
            assert [c.text for c in await chunks_of(handle)] == [f"member {n}"]


async def test_readers_that_interrupt_their_reading_get_no_chunk_twice(
    own: App, client: Client
) -> None:
    await read_by_three(own, client, chunks=3_000)


async def read_by_three(own: App, client: Client, chunks: int) -> list[tuple[int, int]]:
    """Let a job emit chunks for three readers. Each reader leaves and returns repeatedly.

    Returns for each reader the number of chunks that it got, and the number that it missed.
    """

    @own.task(queue=QUEUE)
    async def emits(n: int) -> None:
        for number in range(1, n + 1):
            current_job().emit(str(number))
            if number % 250 == 0:
                await asyncio.sleep(0.02)

    handle = emits.enqueue(n=chunks)

    async def reader(seed: int) -> list[Chunk]:
        rng, got, last = random.Random(seed), [], 0
        while True:
            most = rng.randrange(1, 400)
            async for chunk in handle.stream_async(after=last):
                got.append(chunk)
                last, most = chunk.number, most - 1
                if most == 0:
                    break
            else:
                assert client.run(client.calls.reads.job(handle.id, [QUEUE])) is None
                return got
            await asyncio.sleep(rng.uniform(0, 0.1))

    async with working(own, queues=(QUEUE,), grace=5.0):
        read = await asyncio.gather(*map(reader, range(3)))

    found = []
    for got in read:
        numbers, missed = [c.number for c in got], sum(c.missed for c in got)
        assert numbers == sorted(set(numbers))
        assert [str(number) for number in numbers] == [c.text for c in got]
        assert (numbers[-1], len(numbers) + missed) == (chunks, chunks)
        found.append((len(numbers), missed))
    return found


async def test_a_handler_may_not_watch_another_job_by_default(own: App) -> None:
    refused: list[bool] = []

    @own.task(queue=QUEUE)
    async def follows() -> None:
        for call in ("watch_async", "stream_async"):
            with pytest.raises(WaitRefused):
                getattr(own.handle_by_id(QUEUE, "other"), call)()
            refused.append(True)

    handle = follows.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        assert await chunks_of(handle) == []

    assert refused == [True, True]
