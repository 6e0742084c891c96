"""The calls that the mirror makes to Redis (:class:`OutboxSource`), and their implementation with a client.

Tests implement the calls in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rq_core.connections.client import Client

logger = logging.getLogger("rq_core.audit")

SHARD_PATIENCE_S: Final = 0.2
"""Seconds that the mirror tries to reach a shard of a cluster before it continues with the queues of other shards."""
SHARD_ANSWERS_S: Final = 1.0
"""Seconds that the mirror waits for a shard's answer to a call. (It need not wait longer, since it may repeat each of
its calls at any time.)"""
RawFields = Mapping[str, str]
"""The fields of one outbox entry as Redis sent them. Bytes that are not UTF-8 are lone surrogates in the texts
(Python's ``surrogateescape``), so that no byte is lost."""


class Counts(Protocol):
    """The counts of a queue's audit log that Redis keeps."""

    @property
    def backlog(self) -> int:
        """Number of events that are not mirrored yet."""


class OutboxSource(Protocol):
    """The calls that the mirror makes to Redis, as a protocol."""

    @property
    def prefix(self) -> str:
        """The prefix of the queues' keys."""

    @property
    def url(self) -> str:
        """The server's URL."""

    def queues(self) -> list[str]:
        """Return the names of the queues that Redis has, in any order."""

    def stamp(self, queue: str) -> str | None:
        """Return a queue's stamp: a random mark in Redis, by which SQL recognises the queue.

        Return an empty text if the queue has no stamp, and None if Redis has no such queue.
        """

    def holder(self, queue: str) -> str | None:
        """Return the id of the audit database that mirrors a queue; None if no database does."""

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        """Switch a queue's audit log on, for the audit database ``audit_id``. Redis then logs the state of every live
        job (a baseline), unless the outbox still has all events of a queue that began empty.

        If the log is on already, Redis does this in a new epoch only if its epoch is lower than ``known``, an epoch
        that SQL has. Otherwise it only completes a baseline that has not ended. Later epochs are numbered above
        ``known``, too. ``stamp`` is the queue's random mark in SQL; a queue in Redis without a stamp gets this one. An
        empty text is not compared.

        Raise rq_core.errors.AuditElsewhere if another database mirrors the queue. Raise AuditStampDiffers if the queue
        has another stamp.
        """

    def read_outbox(self, queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        """Return up to ``count`` entries, oldest first, beginning with the entry ``start`` ("-": the oldest entry)."""

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Sequence[tuple[str, RawFields]]:
        """Return up to ``count`` entries before the entry ``before``, newest first."""

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        """Remove the entries before ``upto`` from the outbox, and subtract ``jobs`` events and ``size`` bytes from
        Redis' count of the events that are not mirrored yet.

        An event about the queue counts as one event. Only the bytes of the fields type, jobs, data and why count.
        Nothing happens if ``upto`` is not after the last trim, or is not in the outbox.
        """

    def counts(self, queue: str) -> Counts:
        """Return the counts that Redis has for a queue's log."""

    def place(self, queue: str) -> object:
        """Return an object that identifies the cluster node of a queue; None if the node is not known, or if the server
        is no cluster.
        """

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        """Wait up to ``wait_s`` seconds for new entries. Return the names of the queues that have new entries.

        ``last`` maps each queue to its last known entry ("0-0" if no entry is known). ``last`` must not be empty.
        """

    def close(self) -> None:
        """Close all connections."""


class Outbox:
    """The outboxes of a server's queues: an :class:`OutboxSource` that uses a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = client.run
        self._reads = client.calls.reads
        self._audit = client.calls.audit
        self._complaint = ""

    @property
    def prefix(self) -> str:
        """The prefix of the queues' keys in Redis."""
        return self._client.prefix

    @property
    def url(self) -> str:
        """The URL of the Redis server."""
        return self._client.url

    def queues(self) -> list[str]:
        """Return the names of the queues that Redis lists. A name that is not valid for a queue is left out, and logged
        once.
        """
        listed = self._run(self._reads.listed())
        if listed.complaint not in ("", self._complaint):
            logger.warning("%s", listed.complaint)
        self._complaint = listed.complaint
        return listed.queues

    def stamp(self, queue: str) -> str | None:
        """Return the random mark that Redis has for a queue: its stamp. See OutboxSource.stamp."""
        return self._run(self._reads.stamp(queue))

    def holder(self, queue: str) -> str | None:
        """Return the id of the audit database that mirrors a queue; None if no database does."""
        audit, audit_id, _ = self._run(self._reads.attached(queue))
        return audit_id if audit == "on" else None

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        """Switch a queue's audit log on, for the audit database ``audit_id``. See OutboxSource.attach."""
        self._run(self._audit.attach(queue, audit_id, known, stamp))

    def read_outbox(self, queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        """Return up to ``count`` entries of a queue's outbox, oldest first, beginning with the entry ``start``."""
        return self._run(self._audit.read_outbox(queue, start, count))

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Sequence[tuple[str, RawFields]]:
        """Return up to ``count`` entries of a queue's outbox before the entry ``before``, newest first."""
        return self._run(self._audit.read_outbox_back(queue, before, count))

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        """Remove the entries before ``upto`` from a queue's outbox, since SQL has them. See OutboxSource.trim."""
        self._run(self._audit.trim(queue, audit_id, upto, jobs, size))

    def counts(self, queue: str) -> Counts:
        """Return the counts that Redis has for a queue's log."""
        return self._run(self._reads.counts(queue))

    def place(self, queue: str) -> object:
        """Return an object that identifies the Redis server or cluster node of a queue; None if it is not known, or if
        there is only one server. See Client.place.
        """
        return self._client.place(queue)

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        """Wait up to ``wait_s`` seconds for new outbox entries. Return the names of the queues that have some.

        ``last`` maps each queue to its last known entry. See OutboxSource.wait_outbox.
        """
        return self._client.wait_outbox(last, wait_s)

    def close(self) -> None:
        """Close all connections to Redis."""
        self._client.close()


def open_source(url: str, prefix: str) -> OutboxSource:
    """Return an OutboxSource for the Redis server at ``url``. The source connects at its first call."""
    # These modules are slow to import, and commands that only read SQL do not need them.
    from rq_core.connections.client import Client
    from rq_core.model.lib.url import is_cluster
    from rq_core.protocol.engine.plan import Patience

    # The mirror tries the queues of a shard that is down again later: queues of other shards must not wait for them.
    patience = Patience(SHARD_PATIENCE_S, SHARD_ANSWERS_S) if is_cluster(url) else None
    return Outbox(Client(url, prefix=prefix, name="audit", patience=patience))
