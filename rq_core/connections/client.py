"""The synchronous client. It carries out the plans of :mod:`rq_core.protocol.operations` (generators of commands and
pauses) over a :class:`rq_core.connections.transport.Transport`.

    client = Client("redis://localhost:6379/0")
    client.run(client.calls.enqueue.many([NewJob(...)]))

Most programs use :class:`rq_core.App`, which has a client. Threads may share a client.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self, TypeVar

from rq_core.connections.connection import Connection
from rq_core.connections.connection_options import shown_url
from rq_core.connections.open import open_transport
from rq_core.connections.transport import Transport
from rq_core.errors import RqCoreError
from rq_core.model.job import NewJob
from rq_core.model.keys import DEFAULT_PREFIX, queue_keys
from rq_core.model.lib.url import DEFAULT_URL
from rq_core.protocol.calls.enqueue import ACCEPTED, Accepted
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Patience, Plan, Send
from rq_core.protocol.operations import Operations

T = TypeVar("T")
L = TypeVar("L", bound=Connection)

POLL_EVERY_S: Final = 0.1
"""Seconds between two polls of streams that are on several servers, so that no single blocking command can wait for
all."""


class Client:
    """A client of the queues on a Redis server. ``calls`` makes calls and plans; ``run`` carries them out.

    ``run`` may raise ServerUnavailable and ServerUnsuitable for any call.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        prefix: str = DEFAULT_PREFIX,
        name: str | None = None,
        patience: Patience | None = None,
        transport: Transport | None = None,
        calls: Operations | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url = shown_url(url)
        self.calls = calls or Operations(
            Delivery(prefix=prefix, url=url, name=name, patience=patience)
        )
        self._transport = transport or open_transport(url, patience=patience)
        self._sleep = sleep

    @property
    def prefix(self) -> str:
        """The prefix of all key names."""
        return self.calls.delivery.prefix

    def run(self, what: Plan[T] | Call[T]) -> T:
        """Carry out a plan or one call, and return its result."""
        return self._drive(self.calls.delivery.call(what) if isinstance(what, Call) else what)

    def enqueue_one(self, job: NewJob) -> Accepted:
        """Enqueue one job, and return its outcome. Raises the errors that ``run`` raises."""
        single = self.calls.single
        begun = single.begin(job)
        if begun is None:
            return self._drive(self.calls.enqueue.one(job))
        try:
            replies = self._transport.exchange((begun.command,))
            if replies == ACCEPTED:
                return Accepted((job.id,))
            rest = single.rest(job, begun)
            next(rest)
            return self._drive(rest, replies)
        finally:
            single.end(job, begun)

    def _drive(self, plan: Plan[T], reply: Any = None) -> T:
        """Carry out a plan, and return its result.

        ``reply``: the reply to the plan's first step, if the caller has already carried out this step.
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
                if isinstance(step, Send):
                    reply = self._transport.exchange(*step)
                else:
                    self._sleep(step.seconds)
                    reply = None
            except BaseException as error:
                # The plan may add data to the error, such as the jobs that were accepted.
                with contextlib.suppress(type(error), StopIteration):
                    plan.throw(error)
                plan.close()
                raise

    def place(self, queue: str) -> object:
        """Return an object that identifies the server of a queue.

        Queues with equal objects are on the same server, so a caller can send their calls together. None means that
        there is only one server, or that the queue's server is not known yet.
        """
        return self._transport.place(queue_keys(queue, self.prefix)("meta"))

    def new_connection(self, queue: str, kind: Callable[[Any], L]) -> L | None:
        """Return a new, unopened connection to the server of a queue; None if the server is not known yet. ``kind``:
        the class of the connection."""
        return self._transport.new_connection(queue_keys(queue, self.prefix)("meta"), kind)

    def is_current(self, connection: Connection) -> bool:
        """Return whether a new connection would lead to the same server as this connection."""
        return self._transport.is_current(connection)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_outbox(self, last: Mapping[str, str], seconds: float) -> set[str]:
        """Wait until the outbox (event stream) of a queue has an entry after the one in ``last``, for at most
        ``seconds``. Return the queues that have a newer entry.

        ``last``: queue → id of an outbox entry. Raises Unsent, Lost or ReplyError of rq_core.protocol.engine.plan.
        """
        prefix = self.prefix
        names = {queue_keys(queue, prefix)("outbox"): queue for queue in last}
        if self._transport.one_slot and len(names) > 1:
            return self._poll_outbox(names, last, seconds)
        command = [
            "XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", *names, *last.values(),
        ]  # fmt: skip
        found = self._transport.block(command, seconds)
        return {names[name] for name, _ in found or ()}

    def wait_token(self, key: str, seconds: float) -> str | None:
        """Wait up to ``seconds`` for an element of the Redis list ``key``, and remove it. Return the element, a token;
        None if no token came.

        Raises Unsent, Lost or ReplyError of rq_core.protocol.engine.plan.
        """
        found = self._transport.block(["BLPOP", key, seconds], seconds)
        return None if found is None else str(found[1])

    def _poll_outbox(
        self, names: Mapping[str, str], last: Mapping[str, str], seconds: float
    ) -> set[str]:
        """Wait for new outbox entries as ``wait_outbox`` does, by polling, because the streams are on several servers.

        A stream whose server does not answer counts as unchanged. If no server answers, the first error is raised.
        """
        commands = [["XREAD", "COUNT", 1, "STREAMS", name, last[q]] for name, q in names.items()]
        deadline = time.monotonic() + seconds
        while True:
            replies = self._transport.exchange(commands)
            answers = [reply for reply in replies if not isinstance(reply, Exception)]
            if not answers:
                raise replies[0]
            news = {names[name] for found in answers for name, _ in found or ()}
            left = deadline - time.monotonic()
            if news or left <= 0:
                return news
            self._sleep(min(POLL_EVERY_S, left))
