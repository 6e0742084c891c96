"""A call behind a wait for a wake token. The client writes it with the wait, or when the token arrives; the server
carries it out once, when the wait is over."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import AsyncIterator, Callable, Sequence
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
from rq_core.protocol.engine.plan import Lost, ReplyError, Unsent
from rq_core.worker import wakeups
from tests.kit.cutter import Cutter
from tests.kit.wait import wait_until_async
from tests.unit.test_connections import server

KEYS = queue_keys("q")
TOKEN = f"*2\r\n${len(KEYS('wake'))}\r\n{KEYS('wake')}\r\n$1\r\n1\r\n".encode()
"""The reply to a BLPOP that took a token."""
LONG_S = 30.0

both = pytest.mark.parametrize("written", [True, False], ids=["with the wait", "at the token"])

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
    # The server must have the script. Without it, the server carries out no claim behind a wait.
    made.claim()
    yield made
    made.close()


class Waiting:
    """A client that waits for a token of the queue ``q`` with a claim behind.

    Without ``written``, the claim is prepared, and written when the token arrives.
    """

    def __init__(
        self, url: str, transport: AsyncPoolTransport | None = None, *, written: bool = True
    ) -> None:
        self.client = AsyncClient(url, transport=transport or AsyncPoolTransport(url))
        self.written = written
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tokens = 0
        """Number of tokens at which the claim was written."""

    async def begin(self, seconds: float = LONG_S) -> asyncio.Task[Answer]:
        await self.client.run(self.client.calls.delivery.handshake("q"))
        self.call = claims.claim("q", "w-1", 5)
        on_token = None if self.written else self._count
        return asyncio.create_task(
            self.client.wait_and_carry_out(self.call, seconds, self.over, on_token)
        )

    def _count(self) -> None:
        self.tokens += 1

    def stop(self) -> None:
        """End the wait as a worker that stops does."""
        self.call.args["limit"] = 0
        self.over.set_result(None)

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


@both
async def test_the_answer_to_a_wait_has_the_claimed_jobs_when_a_wake_token_arrives(
    redis_url: str, producer: Producer, written: bool
) -> None:
    async with Waiting(redis_url, written=written) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.enqueue("a", "b")

        assert await ended(answer) == (["a", "b"], None)
    assert producer.ask("LLEN", KEYS("wake")) == 0


@both
async def test_the_claim_behind_a_wait_is_carried_out_even_if_no_wake_token_arrives(
    redis_url: str, producer: Producer, written: bool
) -> None:
    producer.enqueue("a")
    producer.ask("DEL", KEYS("wake"))
    async with Waiting(redis_url, written=written) as waiting:
        assert await ended(await waiting.begin(0.05)) == (["a"], None)


@both
@pytest.mark.parametrize("form", ["functions", "scripts"])
async def test_scripts_that_the_server_forgot_during_a_wait_are_loaded_again(
    redis_url: str, producer: Producer, form: str, written: bool
) -> None:
    async with Waiting(redis_url, written=written) as waiting:
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


@both
async def test_the_claim_behind_a_wait_succeeds_though_a_new_epoch_began_during_the_wait(
    redis_url: str, producer: Producer, written: bool
) -> None:
    async with Waiting(redis_url, written=written) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.ask("DEL", KEYS("meta"))
        producer.ask("RPUSH", KEYS("wake"), "1")

        assert await ended(answer) == ([], None)
    assert producer.ask("HGET", KEYS("meta"), "epoch") is not None


@both
async def test_a_claim_that_lacks_redis_keys_which_the_queue_needs_by_now_is_sent_again_with_these_keys(
    redis_url: str, producer: Producer, written: bool
) -> None:
    """Checks the answer ``with``: the queue has its first job in a lane since the claim was written."""
    async with Waiting(redis_url, written=written) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        producer.enqueue("a", lane="2+tenant=x")

        assert await ended(answer) == (["a"], None)


@both
async def test_a_redis_user_without_the_right_to_wait_gets_the_claimed_jobs_and_the_error(
    redis_url: str, producer: Producer, written: bool
) -> None:
    producer.enqueue("a")
    producer.ask(
        "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "resetchannels", "+@all", "-blpop"
    )
    try:
        parts = urlsplit(redis_url)
        url = parts._replace(netloc=f"narrow:secret@{parts.netloc}").geturl()
        async with Waiting(url, written=written) as waiting:
            jobs, error = await ended(await waiting.begin())
    finally:
        producer.ask("ACL", "DELUSER", "narrow")

    assert jobs == ["a"]
    assert isinstance(error, ReplyError)
    assert "NOPERM" in str(error)


@both
@pytest.mark.parametrize("passing", [len(TOKEN), 0], ids=["between the replies", "before both"])
async def test_the_lost_answer_to_a_claim_behind_a_wait_is_asked_for_again(
    redis_url: str, producer: Producer, passing: int, written: bool
) -> None:
    """Checks a connection that ends after the server has carried out the claim. No job is claimed twice."""
    with Cutter(urlsplit(redis_url).port or 0) as cutter:
        async with Waiting(cutter.url, written=written) as waiting:
            with cutter.cutting("claim", passing=passing):
                answer = await waiting.begin()
                await wait_until_async(producer.someone_waits, "it waits")
                producer.enqueue("a")
                await wait_until_async(cutter.cuts.is_set, "the connection is cut")
                assert producer.state("a") == "running"
            jobs, error = await ended(answer)

    assert jobs == ["a"]
    # A claim that is written at the token is written after the answer to the wait.
    assert isinstance(error, Lost) is (written and passing == 0)
    assert producer.state("a") == "running"
    assert producer.claim() == ()


@both
async def test_a_claim_behind_a_wait_has_the_usual_timeout_once_the_token_has_arrived(
    written: bool,
) -> None:
    """Checks a connection that is dead from the token on. The claim then has the timeout of each other call, and not
    that of the wait."""
    async with server(lambda command: TOKEN if command[0] == b"BLPOP" else None) as url:
        transport = AsyncPoolTransport(url, answer_within=0.2)
        never, on_token = (
            asyncio.get_running_loop().create_future(),
            None if written else lambda: None,
        )
        async with asyncio.timeout(LONG_S / 2):
            wait = ["BLPOP", KEYS("wake"), LONG_S]
            token, lost = await transport.block_before(
                wait, ["FCALL", "claim", 0], LONG_S, never, on_token
            )
        await transport.close()

    assert token == [KEYS("wake"), "1"]
    assert isinstance(lost, Lost)
    assert str(lost) == "no reply for 0.2 s"


async def test_a_prepared_claim_is_not_sent_when_the_wait_is_ended(
    redis_url: str, producer: Producer
) -> None:
    async with Waiting(redis_url, written=False) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        waiting.over.set_result(None)
        assert await answer == (None, None)

        producer.enqueue("a")
        assert [claim.id for claim in producer.claim()] == ["a"]
        assert waiting.tokens == 0


async def test_a_prepared_claim_counts_as_unsent_if_the_connection_ends_before_the_wake_token_arrives() -> (
    None
):
    asked: list[Any] = []
    async with server(asked.append) as url:
        transport = AsyncPoolTransport(url)
        wait, never = ["BLPOP", KEYS("wake"), LONG_S], asyncio.get_running_loop().create_future()
        exchange = transport.block_before(wait, ["FCALL", "claim", 0], LONG_S, never, lambda: None)
        answer = asyncio.create_task(exchange)
        await wait_until_async(lambda: asked, "it waits")
    replies = await answer
    await transport.close()

    assert [type(each) for each in replies] == [Lost, Unsent]


async def test_a_wait_that_is_interrupted_takes_no_job(redis_url: str, producer: Producer) -> None:
    async with Waiting(redis_url) as waiting:
        answer = await waiting.begin()
        await wait_until_async(producer.someone_waits, "it waits")
        waiting.stop()

        assert await ended(answer) == ([], None)
        producer.enqueue("a")
        assert [claim.id for claim in producer.claim()] == ["a"]


class Behind(AsyncPoolTransport):
    """A transport whose waits with a call behind go on after they have been ended.

    ``holding`` keeps the answers from the caller. ``answered`` is the last wait, which ends when the server has
    answered.
    """

    holding = False
    answered: asyncio.Task[list[Any]]

    async def block_before(
        self,
        command: Sequence[Any],
        call: Sequence[Any],
        seconds: float,
        until: asyncio.Future[Any],
        on_token: Callable[[], None] | None,
    ) -> list[Any]:
        never = asyncio.get_running_loop().create_future()
        exchange = super().block_before(command, call, seconds, never, on_token)
        self.answered = asyncio.create_task(exchange)
        await asyncio.wait(
            {until} if self.holding else {until, self.answered}, return_when=asyncio.FIRST_COMPLETED
        )
        if until.done():
            return [None, Lost("the wait was ended")]
        return self.answered.result()


async def test_interrupting_a_wait_returns_jobs_that_redis_has_already_claimed(
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


async def test_a_token_that_arrives_after_a_wait_was_interrupted_claims_no_job(
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


async def test_one_short_exchange_lowers_the_estimated_round_trip_but_only_many_long_exchanges_raise_it(
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
