"""The asyncio client. It carries out plans (generators of commands and pauses), as
:class:`rq_core.connections.client.Client` does for threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from rq_core.connections.connection_options import shown_url
from rq_core.connections.open import open_async_transport
from rq_core.connections.shared_enqueues import SharedEnqueues, Through
from rq_core.connections.transport import AsyncPoolTransport, AsyncTransport
from rq_core.errors import RqCoreError
from rq_core.model.job import NewJob
from rq_core.model.keys import DEFAULT_PREFIX, queue_keys
from rq_core.model.lib.url import DEFAULT_URL
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import (
    Call,
    Patience,
    Pause,
    Plan,
    ReplyError,
    Send,
    Unsent,
)
from rq_core.protocol.engine.retried_commands import in_one_step
from rq_core.protocol.operations import Operations

T = TypeVar("T")


class AsyncClient:
    """A client of the queues on a Redis server, for one event loop. :class:`rq_core.connections.client.Client`
    describes the methods."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        prefix: str = DEFAULT_PREFIX,
        name: str | None = None,
        patience: Patience | None = None,
        transport: AsyncTransport | None = None,
        calls: Operations | None = None,
    ) -> None:
        self.url = url = shown_url(url)
        self.calls = calls or Operations(
            Delivery(prefix=prefix, url=url, name=name, patience=patience)
        )
        self._transport = transport or open_async_transport(url, patience=patience)
        self.shared = SharedEnqueues(
            self.calls.enqueue,
            lambda call, through: self._drive(self.calls.delivery.call(call), through=through),
        )

    @property
    def one_slot(self) -> bool:
        """Return whether a blocking command can wait for only one queue, as in a Redis Cluster."""
        return self._transport.one_slot

    @property
    def prefix(self) -> str:
        """The prefix of all key names."""
        return self.calls.delivery.prefix

    async def run(self, what: Plan[T] | Call[T]) -> T:
        """Carry out a plan or one call, and return its result."""
        return await self._drive(self.calls.delivery.call(what) if isinstance(what, Call) else what)

    async def carry_out(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Carry out calls in one round trip. Return a list with each call's result, or the RqCoreError of a failed
        call."""
        delivery = self.calls.delivery
        if len(calls) != 1:
            return await self._drive(delivery.carry_out(calls))
        # One call needs a plan only if its answer is not ``ok``.
        (call,) = calls
        begun = delivery.begin(call)
        try:
            replies = await self._transport.exchange((begun.command,))
            (reply,) = replies
            if type(reply) is list and reply[0] == "ok":
                return [call.parse(reply[1:])]
            rest = delivery.go_on(call, begun)
            next(rest)
            return [await self._drive(rest, replies)]
        finally:
            delivery.end(call.script, call.queue, begun)

    async def _drive(
        self, plan: Plan[T], reply: Any = None, *, through: Through | None = None
    ) -> T:
        """Carry out a plan, and return its result.

        ``reply``: the reply to the plan's first step, if the caller has already carried out that step. ``through``: a
        function that carries out each step. It is called with the step and with ``_carry_out``, the function that
        carries out steps otherwise.
        """
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except RqCoreError as error:
                if self.prefix != DEFAULT_PREFIX:
                    error.name_prefix(self.prefix)
                raise
            try:
                reply = await (
                    self._carry_out(step) if through is None else through(step, self._carry_out)
                )
            except BaseException as error:
                # The plan may add data to the error, such as the jobs that were accepted.
                with contextlib.suppress(type(error), StopIteration):
                    plan.throw(error)
                plan.close()
                raise

    async def _carry_out(self, step: Send | Pause) -> Any:
        if isinstance(step, Send):
            return await self._transport.exchange(*step)
        await asyncio.sleep(step.seconds)
        return None

    async def close(self) -> None:
        """Wait for the enqueues that are under way, then close all connections."""
        await self.shared.end()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def enqueue_one(self, job: NewJob) -> Accepted:
        """Enqueue one job, and return its outcome. Jobs that are enqueued at the same time share a call.

        Only a few calls are under way at once. Jobs that arrive meanwhile join the next call. If a shared call fails,
        each of its callers gets the error. If a caller is cancelled before the call is sent, its job is not enqueued.
        """
        return await self.shared.enqueue(job)

    async def wait_wake(
        self,
        queues: Sequence[str],
        seconds: float,
        on_token: Callable[[str], None] = lambda _: None,
    ) -> str | None:
        """Wait for a wake token of these queues, and take it. A wake token means that a job is ready. Return the queue
        whose token was taken, or None if no token came within ``seconds``.

        Pass only one queue if ``one_slot`` is true. ``on_token`` is called with the queue's name, one iteration of the
        event loop before this method returns. Raises Unsent, Lost or ReplyError of rq_core.protocol.engine.plan.
        """
        names = {queue_keys(queue, self.prefix)("wake"): queue for queue in queues}

        def hear(found: Any) -> None:
            if type(found) is list:
                on_token(names[found[0]])

        command = ["BLPOP", *names, max(seconds, 0.001)]
        found = await self._transport.block(command, seconds, hear)
        return names[found[0]] if found else None

    def pool_of(self, key: str) -> AsyncPoolTransport | None:
        """Return the transport to the server that has a key. AsyncTransport.pool_of describes the result."""
        return self._transport.pool_of(key)

    async def wait_and_carry_out(
        self,
        call: Call[T],
        seconds: float,
        until: asyncio.Future[Any],
        on_token: Callable[[], None] | None = None,
    ) -> tuple[T | RqCoreError | None, Exception | None]:
        """Wait for a wake token of the call's queue, take it, and carry out the call. The call is also carried out if
        no token came within ``seconds``.

        Without ``on_token``, the call is sent together with the blocking command, and the server carries out the call
        without another round trip. With ``on_token``, the call is prepared now, and sent as soon as the blocking
        command has been answered. Then ``on_token`` is called.

        Return a pair: the call's value or its RqCoreError, and the error of the blocking command or None. Use this
        method only if ``pool_of`` returns the queue's server.

        If ``until`` is done first, the connection is closed. A call that may have been sent is then sent again without
        the blocking command, with the arguments that the call has at that time. The server still carries it out only
        once. With ``on_token``, a call that was not sent, because ``until`` was done or the connection failed, is not
        carried out. The pair then has None in place of a value.
        """
        delivery, key = self.calls.delivery, queue_keys(call.queue, self.prefix)("wake")
        pool = self.pool_of(key)
        assert pool is not None
        begun = delivery.begin(call)
        try:
            wait = ["BLPOP", key, max(seconds, 0.001)]
            waited, reply = await pool.block_before(wait, begun.command, seconds, until, on_token)
            error = waited if isinstance(waited, Exception) else None
            if until.done():
                error = None
            if isinstance(reply, Unsent) and on_token is not None:
                return None, error
            if type(reply) is list and reply[0] == "ok":
                return call.parse(reply[1:]), error
            if isinstance(reply, ReplyError) and str(reply).startswith(("MOVED", "ASK")):
                reply = Unsent(str(reply))
            # The patience begins when the wait is over.
            rest = delivery.go_on(call, begun._replace(since=delivery.asking.clock()))
            next(rest)
            return await self._drive(rest, [reply]), error
        finally:
            delivery.end(call.script, call.queue, begun)

    async def return_token(self, queue: str) -> None:
        """Put an unused wake token back into its queue. If the queue has got another token meanwhile, it keeps only
        one."""
        key = queue_keys(queue, self.prefix)("wake")
        # In one step: other workers that stop, and scripts, also push tokens.
        both = in_one_step([["RPUSH", key, "1"], ["LTRIM", key, 0, 0]])
        await self.run(self.calls.delivery.ask([both]))
