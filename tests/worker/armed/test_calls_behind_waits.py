"""A call that a client writes behind its wait for a wake token: the server carries it out once, when the wait ends."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.transport import AsyncPoolTransport
from rq_core.errors import RqCoreError
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import Lost, ReplyError
from rq_core.worker import wakeups
from tests.kit.cutter import Cutter
from tests.kit.wait import wait_until_async

KEYS = queue_keys("q")
TOKEN = f"*2\r\n${len(KEYS('wake'))}\r\n{KEYS('wake')}\r\n$1\r\n1\r\n".encode()
"""The reply to a BLPOP that took a token."""
LONG_S = 30.0

Answer = tuple[Claimed | RqCoreError, Exception | None]


class Producer:
    """The server as others see it: a client that enqueues and looks."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)

    def close(self) -> None:
        self._client.close()

    def enqueue(self, *ids: str, lane: str = "") -> None:
        jobs = [NewJob(each, "q", profile("t"), "{}", lane=lane) for each in ids]
        self._client.run(self._client.calls.enqueue.many(jobs))

    def ask(self, *words: Any) -> Any:
        (reply,) = self._client.run(self._client.calls.delivery.ask([list(words)]))
        return reply

    def state(self, job_id: str) -> str:
        found = self._client.run(self._client.calls.reads.job(job_id, ["q"]))
        assert found is not None
        return found.state

    def claim(self) -> tuple[Claim, ...]:
        return self._client.run(claims.claim("q", "w-other", 5)).jobs

    def someone_waits(self) -> bool:
        return "cmd=blpop" in self.ask("CLIENT", "LIST")


@pytest.fixture
async def producer(redis_url: str) -> AsyncIterator[Producer]:
    made = Producer(redis_url)
    yield made
    made.close()


class Waiting:
    """A client that waits for a token of the queue ``q`` with a claim behind."""

    def __init__(self, url: str, transport: AsyncPoolTransport | None = None) -> None:
        self.client = AsyncClient(url, transport=transport or AsyncPoolTransport(url))
        self.over = asyncio.Event()

    async def begin(self, seconds: float = LONG_S) -> asyncio.Task[Answer]:
        await self.client.run(self.client.calls.delivery.handshake("q"))
        self.call = claims.claim("q", "w-1", 5)
        return asyncio.create_task(
            self.client.wait_and_carry_out(self.call, seconds, until=self.over)
        )

    def stop(self) -> None:
        """End the wait as a worker that stops does."""
        self.call.args["limit"] = 0
        self.over.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


async def ended(answer: asyncio.Task[Answer]) -> tuple[list[str], Exception | None]:
    """Return the ids of the jobs that were claimed, and the error of the wait."""
    async with asyncio.timeout(LONG_S):
        claimed, error = await answer
    assert isinstance(claimed, Claimed)
    return [claim.id for claim in claimed.jobs], error


async def test_a_token_brings_the_jobs_with_it(redis_url: str, producer: Producer) -> None:
    async with Waiting(redis_url) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.enqueue("a", "b")

        assert await ended(answer) == (["a", "b"], None)
    assert producer.ask("LLEN", KEYS("wake")) == 0


async def test_the_claim_is_carried_out_when_no_token_comes(
    redis_url: str, producer: Producer
) -> None:
    producer.enqueue("a")
    producer.ask("DEL", KEYS("wake"))
    async with Waiting(redis_url) as waiting:
        assert await ended(await waiting.begin(0.05)) == (["a"], None)


@pytest.mark.parametrize("form", ["functions", "scripts"])
async def test_a_server_that_has_forgotten_its_scripts_meanwhile_gets_them_again(
    redis_url: str, producer: Producer, form: str
) -> None:
    async with Waiting(redis_url) as waiting:
        waiting.client.calls.delivery._use_functions(form == "functions")
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.enqueue("a", "b")
        await ended(answer)
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits again")

        producer.ask("FUNCTION" if form == "functions" else "SCRIPT", "FLUSH")
        producer.ask("RPUSH", KEYS("wake"), "1")

        assert await ended(answer) == ([], None)


async def test_a_new_epoch_that_began_meanwhile_is_met(redis_url: str, producer: Producer) -> None:
    async with Waiting(redis_url) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.ask("DEL", KEYS("meta"))
        producer.ask("RPUSH", KEYS("wake"), "1")

        assert await ended(answer) == ([], None)
    assert producer.ask("HGET", KEYS("meta"), "epoch") is not None


async def test_a_claim_without_the_keys_of_a_new_fact_is_sent_again_with_them(
    redis_url: str, producer: Producer
) -> None:
    """Checks the answer ``with``: the queue has its first job in a lane since the claim was written."""
    async with Waiting(redis_url) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.enqueue("a", lane="2+tenant=x")

        assert await ended(answer) == (["a"], None)


async def test_a_user_that_may_not_wait_gets_the_jobs_and_the_error(
    redis_url: str, producer: Producer
) -> None:
    producer.enqueue("a")
    producer.ask(
        "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "resetchannels", "+@all", "-blpop"
    )
    try:
        parts = urlsplit(redis_url)
        url = parts._replace(netloc=f"narrow:secret@{parts.netloc}").geturl()
        async with Waiting(url) as waiting:
            jobs, error = await ended(await waiting.begin())
    finally:
        producer.ask("ACL", "DELUSER", "narrow")

    assert jobs == ["a"]
    assert isinstance(error, ReplyError)
    assert "NOPERM" in str(error)


@pytest.mark.parametrize("passing", [len(TOKEN), 0], ids=["between the replies", "before both"])
async def test_a_lost_answer_is_asked_for_again(
    redis_url: str, producer: Producer, passing: int
) -> None:
    """Checks a connection that ends after the server has carried out the claim. No job is claimed twice."""
    with Cutter(urlsplit(redis_url).port or 0) as cutter:
        async with Waiting(cutter.url) as waiting:
            with cutter.cutting("claim", passing=passing):
                answer = await waiting.begin()
                await wait_until_async(producer.someone_waits, "it waits")
                producer.enqueue("a")
                await wait_until_async(cutter.cuts.is_set, "the connection is cut")
            jobs, error = await ended(answer)

    assert jobs == ["a"]
    assert isinstance(error, Lost) is (passing == 0)
    assert producer.state("a") == "running"
    assert producer.claim() == ()


async def test_a_wait_that_is_ended_takes_no_job(redis_url: str, producer: Producer) -> None:
    async with Waiting(redis_url) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        waiting.stop()

        assert await ended(answer) == ([], None)
        producer.enqueue("a")
        assert [claim.id for claim in producer.claim()] == ["a"]


class Behind(AsyncPoolTransport):
    """A transport whose waits with a call behind do not end when their caller is cancelled.

    ``holding`` keeps the answers from the caller. ``answered`` is the last wait, which ends when the server has
    answered.
    """

    holding = False
    answered: asyncio.Task[list[Any]]

    async def block_before(
        self, command: Sequence[Any], call: Sequence[Any], seconds: float
    ) -> list[Any]:
        self.answered = asyncio.create_task(super().block_before(command, call, seconds))
        replies = await asyncio.shield(self.answered)
        if self.holding:
            await asyncio.Event().wait()
        return replies


async def test_jobs_that_a_token_brought_just_before_the_end_are_returned(
    redis_url: str, producer: Producer
) -> None:
    """Checks a claim that the server has carried out, whose answer is under way when the wait is ended."""
    transport = Behind(redis_url)
    transport.holding = True
    async with Waiting(redis_url, transport) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.enqueue("a")
        await wait_until_async(lambda: producer.state("a") == "running", "it is claimed")
        waiting.stop()

        assert await ended(answer) == (["a"], None)
    assert producer.claim() == ()


async def test_a_token_that_comes_after_the_end_brings_no_job(
    redis_url: str, producer: Producer
) -> None:
    """Checks a server that has not seen yet that the connection was closed. The claim behind has the number of one that
    was carried out, so it takes nothing."""
    transport = Behind(redis_url)
    async with Waiting(redis_url, transport) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        waiting.stop()
        assert await ended(answer) == ([], None)

        producer.enqueue("a")
        token, repeated = await transport.answered
        assert (token, repeated[0]) == ([KEYS("wake"), "1"], "ok")
        assert producer.state("a") == "ready"
        assert [claim.id for claim in producer.claim()] == ["a"]


async def test_one_short_exchange_lowers_the_round_trip_and_many_long_ones_raise_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = AsyncPoolTransport(redis_url)

    async def exchange(seconds: float, count: int) -> float:
        """Make exchanges that take this long by the clock. Return the estimate."""
        times = itertools.count(0.0, seconds)
        monkeypatch.setattr(
            "rq_core.connections.transport.time",
            types.SimpleNamespace(perf_counter=lambda: next(times)),
        )
        for _ in range(count):
            assert await transport.exchange([["PING"]]) == ["PONG"]
        before = transport.round_trip
        await transport.block(["BLPOP", "none", 0.001], 0.001)
        assert transport.round_trip == before
        return transport.round_trip

    assert await exchange(0.002, 15) < wakeups.STILL_FAR_S
    assert await exchange(0.002, 80) == pytest.approx(0.002)
    assert await exchange(0.00005, 1) == pytest.approx(0.00005)
    assert await exchange(0.002, 30) < wakeups.FAR_S
    await transport.close()
