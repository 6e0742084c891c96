"""Checks jobs for which clients wait, and subscribes to messages about their ends, over one connection to each server.

A check sends two requests in one write. The first subscribes to the queue's channel, unless the connection is already
subscribed. The second asks which of the jobs have ended. A check is not possible without a connection, without the
right to subscribe, or if the cluster slot has moved. Then :mod:`rq_core.connections.wait_thread` checks the jobs with
ordinary commands.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import hiredis
import redis

from rq_core.connections.client import Client
from rq_core.connections.connection import PENDING, RECEIVE_BYTES, Connection, Push, soonest
from rq_core.connections.redis_errors import BROKEN, is_demoted
from rq_core.errors import RqCoreError
from rq_core.model.keys import DEFAULT_PREFIX, queue_keys
from rq_core.model.settings import LISTEN_MS
from rq_core.protocol.engine import acl_roles
from rq_core.protocol.engine.plan import ReplyError
from rq_core.protocol.reads import result_reads
from rq_core.protocol.reads.result_reads import Found

# A connection that receives channel messages between replies, as RESP3 allows.
#
# Redis answers in order: a message that is published between a subscription and a reply arrives before the reply. So a
# check in one write with the subscription finds all ends for which no message will arrive.

_SUBSCRIBES = {"SSUBSCRIBE": "ssubscribe", "SUNSUBSCRIBE": "sunsubscribe"}
"""Commands that the server answers with a push message, each with the first word of that message."""


class HearingConnection(Connection):
    """A connection of one thread that receives replies and channel messages."""

    def __init__(self, source: Any) -> None:
        """Create a connection that is not open yet. ``source`` is a pool of redis-py."""
        super().__init__(source)
        self._messages: deque[tuple[str, str, str]] = deque()

    @property
    def socket(self) -> Any:
        """The socket, which becomes readable when bytes arrive; None if the connection is closed."""
        return self._socket

    def connect(self, within: float | None = None) -> None:
        """Connect, or reconnect, and switch to RESP3. Raises the errors of Connection.connect.

        Also raises redis.ConnectionError if the server does not speak RESP3.
        """
        super().connect(within)
        self._messages.clear()
        # redis-py has greeted by now, in RESP2: its own handling of RESP3 is not wanted here.
        (reply,) = self.exchange([["HELLO", "3"]], soonest(self._connect_within, within))
        if isinstance(reply, ReplyError):
            raise redis.ConnectionError(f"it does not speak RESP3: {reply}")

    def exchange(self, commands: Sequence[Sequence[Any]], within: float) -> list[Any]:
        """Send commands, and return their replies. An error reply is a ReplyError. A successful SSUBSCRIBE or
        SUNSUBSCRIBE has the reply None.

        Each read may take ``within`` seconds. Raises the errors of Connection.receive.
        """
        self._socket.settimeout(within)
        self.send(b"".join(hiredis.pack_command(tuple(each)) for each in commands))
        replies = [self._reply_to(each) for each in commands]
        self._read()
        return replies

    def messages(self) -> list[tuple[str, str, str]]:
        """Return the messages since the last call, each as (kind, channel, text). The kind is smessage or sunsubscribe.

        Raises OSError, or EOFError if the server has closed the connection.
        """
        if self._socket is not None:
            self._read()
        found = [*self._messages]
        self._messages.clear()
        return found

    def _reply_to(self, command: Sequence[Any]) -> Any:
        kind = _SUBSCRIBES.get(str(command[0]))
        while True:
            reply = self._reader.gets()
            if reply is PENDING:
                self._feed()
            elif type(reply) is not Push:
                return reply
            elif kind is not None and reply[:2] == [kind, command[1]]:
                return None
            else:
                self._note(reply)

    def _feed(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise EOFError("the server closed the connection")
        self._reader.feed(data)

    def _read(self) -> None:
        """Read all bytes that have arrived, without waiting. All must be read: bytes that TLS has already decrypted do
        not make the socket readable."""
        self._socket.settimeout(0)
        while True:
            while (message := self._reader.gets()) is not PENDING:
                self._note(message)
            try:
                self._feed()
            except (BlockingIOError, ssl.SSLWantReadError):
                return

    def _note(self, message: Any) -> None:
        if type(message) is Push and len(message) == 3:
            self._messages.append((message[0], message[1], str(message[2])))


log = logging.getLogger(__name__)

ANSWER_S: Final = 2.0
"""Seconds without an answer after which the connection is closed."""
CONNECT_S: Final = 1.0
"""Seconds to open a connection."""
AGAIN_S: Final = 0.25
"""Seconds between a failed attempt to connect to a server and the next attempt."""
DEAF_S: Final = 60.0
"""Seconds without a new subscription to a queue whose messages did not arrive or may not be received."""


class Looked(NamedTuple):
    """The result of a check: which jobs have ended, and whether messages about the others will arrive."""

    found: dict[str, Found]
    hearing: object | None
    """The subscription that will report the ends of the jobs that are still alive; None if no messages will arrive."""


class _Subscription:
    """One uninterrupted subscription to a queue, on one connection. Objects are compared by identity, so a renewed
    subscription differs from the earlier one."""

    def __init__(self, queue: str, ear: _Ear) -> None:
        self.queue = queue
        self.ear = ear


class _Ear:
    """The connection to one server that receives channel messages, and the time before which it is not opened again."""

    def __init__(self, connection: HearingConnection) -> None:
        self.connection = connection
        self.again_at = 0.0


class Deafness:
    """The queues whose messages about ended jobs do not reach this process. All threads of one Waiter share this
    object."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        """Queue → clock time from which this process may subscribe to it again."""
        self.warned: set[str] = set()
        """The warnings that were already logged. Each is logged only once, for the first queue that has the problem."""


class Listener:
    """The checks of jobs and the subscriptions of one thread. Close the listener after use."""

    def __init__(self, client: Client, clock: Callable[[], float], deaf: Deafness) -> None:
        self._client = client
        self._deaf = deaf
        self._clock = clock
        self._ears: dict[object, _Ear] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        self._channels: dict[str, str] = {}
        """Name of a channel → the queue whose ended jobs it reports."""
        self._missed: list[str] = []

    def look(self, queue: str, ids: Sequence[str]) -> Looked | None:
        """Check which jobs have ended, and subscribe to the ends of the others. Return None if the server cannot be
        checked over this connection now.

        Raises QueueDamaged.
        """
        if self._deaf.until.get(queue, 0.0) > self._clock():
            return None
        ear = self._ear_for(queue)
        if ear is None:
            return None
        try:
            found = self._look(ear, queue, ids)
        except (*BROKEN, redis.RedisError):
            self._drop(ear)
            return None
        return None if found is None else Looked(found, self._subscriptions.get(queue))

    def told(self) -> tuple[list[tuple[str, list[str]]], list[str]]:
        """Return the messages about ended jobs that have arrived, as two lists.

        The first has (queue, ids of ended jobs) pairs. The second has the queues whose messages may have been missed,
        because the subscription or the connection has ended.
        """
        told: list[tuple[str, list[str]]] = []
        for ear in self._ears.values():
            if not ear.connection.is_connected:
                continue
            try:
                messages = ear.connection.messages()
            except BROKEN:
                self._drop(ear)
                continue
            for kind, channel, text in messages:
                queue = self._channels.get(channel)
                if queue is None:
                    continue
                if kind == "smessage":
                    told.append((queue, text.split(" ")))
                elif kind == "sunsubscribe":
                    self._ended(queue, ear)
        missed, self._missed = self._missed, []
        return told, missed

    def sockets(self) -> list[Any]:
        """Return the sockets that become readable when messages arrive."""
        return [ear.connection.socket for ear in self._ears.values() if ear.connection.is_connected]

    def subscribed(self) -> set[str]:
        """Return the queues with a subscription."""
        return set(self._subscriptions)

    def leave(self, queues: Iterable[str]) -> None:
        """Unsubscribe from these queues."""
        for queue in queues:
            subscription = self._subscriptions.pop(queue, None)
            if subscription is None:
                continue
            channel = queue_keys(queue, self._client.prefix).channel
            try:
                subscription.ear.connection.exchange([["SUNSUBSCRIBE", channel]], ANSWER_S)
            except (*BROKEN, redis.RedisError):
                self._drop(subscription.ear)

    def was_of_no_use(self, queue: str) -> None:
        """Stop new subscriptions to this queue for DEAF_S seconds, because a job of the queue ended without a
        message."""
        self._deaf.until[queue] = self._clock() + DEAF_S
        self._warn(
            queue,
            "not all ends of jobs of queue %s are published: the user of a worker may lack the right &%s, which"
            " `rq-core acl worker%s` prints. Waits continue by polling, at most a second apart",
        )

    def close(self) -> None:
        """Close all connections."""
        for ear in self._ears.values():
            self._drop(ear)
        self._ears.clear()

    def _look(self, ear: _Ear, queue: str, ids: Sequence[str]) -> dict[str, Found] | None:
        found: dict[str, Found] = {}
        told_ms = 0
        left: list[str] = [*ids]
        has_asked = False
        while left:
            pages = [
                left[at : at + result_reads.PAGE] for at in range(0, len(left), result_reads.PAGE)
            ]
            replies = self._ask(ear, queue, pages)
            if replies is None:
                return None
            left = []
            for page, reply in zip(pages, replies, strict=True):
                look = result_reads.read_ends(queue, page, reply)
                found |= look.found
                left += look.later
                told_ms = look.told_ms
            if told_ms <= 0 and queue in self._subscriptions:
                # No client has recently registered that it waits: this process was stopped, or Redis forgot the
                # registration. No message was published for jobs that ended meanwhile, and this is not a worker's
                # missing right.
                self._subscriptions[queue] = _Subscription(queue, ear)
            alive = [job_id for job_id in ids if job_id not in found]
            if alive and not left and not has_asked and not LISTEN_MS / 2 <= told_ms <= LISTEN_MS:
                if not self._have_ends_published(ear, queue):
                    return None
                # No message was published for jobs that ended meanwhile.
                has_asked, left = True, alive
        return found

    def _ask(self, ear: _Ear, queue: str, pages: Sequence[Sequence[str]]) -> list[Any] | None:
        """Send the checks of a queue's jobs, and return the replies. Subscribe to the queue first, if necessary.

        ``pages``: the ids, divided into one list for each check. Return None if the server refuses the subscription or
        a check.
        """
        keys = queue_keys(queue, self._client.prefix)
        commands = [result_reads.command(keys, page) for page in pages]
        subscription = self._subscriptions.get(queue)
        if subscription is not None and subscription.ear is not ear:
            self.leave([queue])
            subscription = None
        if subscription is None:
            commands.insert(0, ["SSUBSCRIBE", keys.channel])
        replies = ear.connection.exchange(commands, ANSWER_S)
        if subscription is None:
            refusal = replies.pop(0)
            if refusal is not None:
                self._cannot_listen(queue, refusal)
                return None
            self._subscriptions[queue] = _Subscription(queue, ear)
            self._channels[keys.channel] = queue
        if any(isinstance(reply, ReplyError) for reply in replies):
            return None
        return replies

    def _have_ends_published(self, ear: _Ear, queue: str) -> bool:
        """Register in the queue that a client waits, so that scripts publish the ends of its jobs. Return False if this
        fails."""
        try:
            calls = self._client.calls
            (reply,) = ear.connection.exchange([calls.endings.listen_command(queue)], ANSWER_S)
            if is_demoted([reply]):
                # Another server has the queue by now: the check without a subscription finds the server.
                self._drop(ear)
                return False
            if not isinstance(reply, list) or reply[0] != "ok":
                # The client handles the answer: it loads the function, or makes the handshake with the queue.
                self._client.run(calls.endings.listen(queue))
                self._client.close()
        except RqCoreError as error:
            self._cannot_listen(queue, error)
            return False
        return True

    def _cannot_listen(self, queue: str, error: Exception) -> None:
        if not acl_roles.is_denial(str(error)):
            return
        self._deaf.until[queue] = self._clock() + DEAF_S
        self._warn(
            queue,
            "this process gets no messages when jobs of queue %s end: its user lacks the right &%s, or a command for"
            " it; `rq-core acl producer%s` prints all rights that the user needs. Waits continue by polling, at most a"
            " second apart",
        )

    def _warn(self, queue: str, text: str) -> None:
        if text not in self._deaf.warned:
            self._deaf.warned.add(text)
            prefix = self._client.prefix
            option = "" if prefix == DEFAULT_PREFIX else f" --prefix {prefix}"
            log.warning(text, queue, queue_keys(queue, prefix).channel, option)

    def _ear_for(self, queue: str) -> _Ear | None:
        """Return the open connection to the server that has a queue; None if the server cannot be reached now."""
        place = self._client.place(queue)
        ear = self._ears.get(place)
        if ear is None:
            connection = self._client.new_connection(queue, HearingConnection)
            if connection is None:
                return None
            ear = self._ears[place] = _Ear(connection)
        if ear.connection.is_connected and self._client.is_current(ear.connection):
            return ear
        now = self._clock()
        self._drop(ear)
        if ear.again_at > now:
            return None
        try:
            ear.connection.connect(CONNECT_S)
        except (*BROKEN, redis.RedisError):
            self._drop(ear)
            ear.again_at = self._clock() + AGAIN_S
            return None
        return ear

    def _drop(self, ear: _Ear) -> None:
        """Close a connection, which ends all its subscriptions."""
        ear.connection.disconnect()
        for queue in [*self._subscriptions]:
            self._ended(queue, ear)

    def _ended(self, queue: str, ear: _Ear) -> None:
        """Remove a queue's subscription if it was on this connection, and note that messages about the queue may have
        been missed."""
        made = self._subscriptions.get(queue)
        if made is not None and made.ear is ear:
            del self._subscriptions[queue]
            self._missed.append(queue)
