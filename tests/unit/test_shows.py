"""The progress and the chunks of handlers on their way to Redis: how they are gathered, sent, and sent again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import uvloop

from rq_core import InvalidOption, RqCoreError, current_job
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.showing import Showing
from rq_core.model.job import Claim
from rq_core.model.showing.shown import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    STREAM_BYTES_MAX,
    TEXT_MAX,
    read_said,
    said_as_text,
)
from rq_core.protocol.engine.plan import Call
from rq_core.testing import job_running
from rq_core.worker.execution import shows
from rq_core.worker.execution.shows import Shows
from tests.kit.wait import wait_until_async


class Client:
    """A client that records the calls, and answers as Redis does, or fails."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []
        self.is_away = False
        self.asked = 0
        self.answers: asyncio.Event | None = None

    async def carry_out(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self.asked += 1
        if self.answers is not None:
            await self.answers.wait()
        if self.is_away:
            raise RqCoreError("away")
        self.calls += calls
        return [{record[0]: "7" for record in call.each} for call in calls]

    @property
    def sent(self) -> list[tuple[str, int, str]]:
        return [(r[4], r[5], r[6]) for call in self.calls for r in call.each]


def context(job_id: str = "a") -> JobContext:
    return JobContext(
        id=job_id, queue="q", task="t", claim=1, failures=0, losses=0, fence="1-2", worker="w"
    )  # fmt: skip


CLAIM = Claim("q", "a", "1-2", 1, 0, 0, "")


def made(client: Client) -> tuple[Shows, JobContext]:
    sender, job = Shows(client, "w"), context()
    sender.attach()
    job.shows = sender
    return sender, job


def test_a_handler_without_a_worker_may_show_a_progress() -> None:
    with job_running():
        current_job().progress(1, 2)
        current_job().emit("x")


@pytest.mark.parametrize(
    "said", [(1, 2, ""), (0, None, "up and down"), (0.5, 1, "half"), (10**15, 10**15, "1/2")]
)
def test_a_progress_is_read_back_as_it_was_written(said: tuple[Any, Any, str]) -> None:
    assert read_said(said_as_text(*said)) == said


def test_the_text_of_a_progress_is_made_one_line_and_cut_to_its_limit() -> None:
    found = read_said(said_as_text(1, 2, "two\nlines " + "x" * 1_000))
    assert found is not None
    assert (found[2][:10], len(found[2])) == ("two lines ", TEXT_MAX)


@pytest.mark.parametrize(
    "said", [(-1, 2), (1, -2), (True, 2), ("1", 2), (float("nan"), 2), (1, float("inf")), (1, "2")]
)
def test_a_progress_with_invalid_numbers_is_refused(said: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidOption):
        context().progress(*said)


def test_a_value_of_another_type_and_a_chunk_that_is_too_long_are_refused() -> None:
    job = context()
    for call in (
        lambda: job.progress(1, 2, 3),  # type: ignore[arg-type]
        lambda: job.emit(b"x"),  # type: ignore[arg-type]
        lambda: job.emit("é" * (CHUNK_BYTES_MAX // 2 + 1)),
    ):
        with pytest.raises(InvalidOption):
            call()
    job.emit("é" * (CHUNK_BYTES_MAX // 2))


def test_the_oldest_unsent_chunks_are_dropped_beyond_the_limit() -> None:
    showing = Showing(None)
    for n in range(1, CHUNKS_MAX + 11):
        showing.emit(str(n))
    taken = showing.take()
    assert [n for n, _ in taken.chunks] == list(range(11, CHUNKS_MAX + 11))

    for _ in range(100):
        showing.emit("x" * CHUNK_BYTES_MAX)
    assert len(showing.take().chunks) == STREAM_BYTES_MAX // CHUNK_BYTES_MAX


async def test_the_last_progress_is_sent_once_and_all_chunks_are_sent_in_order() -> None:
    client = Client()
    sender, job = made(client)
    for n in range(100):
        job.progress(n, 100)
    job.emit("one")
    job.emit("two")
    await sender.before([CLAIM])

    assert client.sent == [("chunk", 1, "one"), ("chunk", 2, "two"), ("says", 1, "99/100")]
    assert job.showing().start == 7
    await sender.before([CLAIM])
    assert len(client.calls) == 1


async def test_a_progress_from_a_thread_wakes_the_worker() -> None:
    client = Client()
    _, job = made(client)
    thread = threading.Thread(target=job.progress, args=(1, 2))
    thread.start()
    thread.join()
    await wait_until_async(lambda: bool(client.calls), "it is sent")

    assert client.sent == [("says", 1, "1/2")]


async def test_chunks_that_could_not_be_sent_are_sent_again_with_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shows, "AGAIN_S", 0.2)
    client = Client()
    _, job = made(client)
    client.is_away = True
    job.emit("one")
    await asyncio.sleep(2 * shows.GATHER_S)
    client.is_away = False
    job.emit("two")
    await wait_until_async(lambda: bool(client.calls), "it is sent")

    assert client.sent == [("chunk", 1, "one"), ("chunk", 2, "two")]


async def test_chunks_of_a_failed_call_are_sent_again_before_later_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shows, "AGAIN_S", 0.2)
    client = Client()
    _, job = made(client)
    client.answers, client.is_away = asyncio.Event(), True
    job.emit("one")
    await wait_until_async(lambda: client.asked > 0, "the call is under way")
    job.emit("two")
    client.answers.set()
    await asyncio.sleep(0)  # The call fails before the timer of the second chunk is due.
    await asyncio.sleep(0)
    client.is_away = False
    await wait_until_async(lambda: bool(client.calls), "it is sent")

    assert client.sent == [("chunk", 1, "one"), ("chunk", 2, "two")]


async def test_a_progress_that_could_not_be_sent_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shows, "AGAIN_S", 0.2)
    client = Client()
    _, job = made(client)
    client.is_away = True
    job.progress(1, 2)
    await wait_until_async(lambda: client.asked > 0, "a call has failed")
    client.is_away = False
    await wait_until_async(lambda: bool(client.calls), "it is sent")

    assert [text for _, _, text in client.sent] == ["1/2"]


async def test_unsent_chunks_and_progress_are_sent_before_the_settlement() -> None:
    client = Client()
    sender, job = made(client)
    client.is_away = True
    job.emit("one")
    job.progress(1, 2)
    await wait_until_async(lambda: client.asked > 0, "a call has failed")
    client.is_away = False
    await sender.before([CLAIM])

    assert [(kind, text) for kind, _, text in client.sent] == [("chunk", "one"), ("says", "1/2")]
    assert not sender.is_busy


async def test_a_worker_drops_the_chunks_of_jobs_that_end_while_redis_is_away() -> None:
    client = Client()
    sender, job = made(client)
    client.is_away = True
    job.emit("one")
    await sender.before([CLAIM])

    assert not sender.is_busy
    assert job.showing().take().is_empty


async def test_a_server_that_does_not_answer_delays_a_settlement_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shows, "LAST_S", 0.05)
    client = Client()
    sender, job = made(client)
    client.answers = asyncio.Event()
    job.progress(1, 2)

    async with asyncio.timeout(5):
        await sender.before([CLAIM])
    assert client.calls == []


async def test_many_chunks_are_sent_in_several_calls_of_bounded_size() -> None:
    client = Client()
    sender, job = made(client)
    for _ in range(60):
        job.emit("x" * CHUNK_BYTES_MAX)
    other = context("b")
    other.shows = sender
    for n in range(CHUNKS_MAX):
        other.emit(str(n))
    await sender.before([CLAIM, CLAIM._replace(id="b")])

    sizes = [sum(len(r[6]) for r in call.each) for call in client.calls]
    assert max(len(call.each) for call in client.calls) <= shows.RECORDS_MAX
    assert max(sizes) <= shows.BYTES_MAX + CHUNK_BYTES_MAX


async def test_a_settlement_does_not_wait_for_the_chunks_of_another_job() -> None:
    client = Client()
    sender, job = made(client)
    client.answers = asyncio.Event()
    job.progress(1, 2)
    await wait_until_async(lambda: not sender._new, "its call is under way")

    async with asyncio.timeout(shows.LAST_S / 2):
        await sender.before([CLAIM._replace(id="b")])
    client.answers.set()
    await sender.before([CLAIM])
    assert client.sent == [("says", 1, "1/2")]


def test_a_progress_and_a_chunk_are_sent_on_the_event_loop_that_workers_use() -> None:
    """Workers use uvloop. A timer of uvloop that is already due when it is set does not know its time."""
    client = Client()

    async def shows_both() -> None:
        _, job = made(client)
        job.progress(1, 2)
        job.emit("one")
        await wait_until_async(lambda: len(client.sent) == 2, "both are sent")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(shows_both())

    assert client.sent == [("chunk", 1, "one"), ("says", 1, "1/2")]
