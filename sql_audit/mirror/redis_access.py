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
    """The counts that Redis has for a queue's log."""

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
        """Return the stamp of a queue, a random mark by which SQL recognises the queue.

        Return an empty text if the queue has no stamp, and None if Redis has no such queue.
        """

    def holder(self, queue: str) -> str | None:
        """Return the id of the audit database that mirrors a queue; None if no database does."""

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        """Switch the audit log of a queue on, with a baseline of all live jobs.

        ``known`` is an epoch that SQL has. If the queue's epoch is earlier, Redis begins an epoch after ``known``, with
        a baseline. The epochs that Redis begins later have numbers above ``known``, too. If the log is on and the
        queue's epoch is not earlier, nothing happens. ``stamp`` is SQL's stamp of the queue; a queue without a stamp
        gets this one.

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
        """Remove the entries before ``upto`` from the outbox. Subtract ``jobs`` events and ``size`` bytes from the
        backlog.

        An event about the queue counts as one event. Only the bytes of the fields type, jobs, data and why count.
        Nothing happens if ``upto`` is not after the last trim, or is not in the outbox.
        """

    def counts(self, queue: str) -> Counts:
        """Return the counts that Redis has for a queue's log."""

    def place(self, queue: str) -> object:
        """Return the cluster node that has a queue; None if the node is not known, or if the server is no cluster."""

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
        """Switch the audit log of a queue on. See OutboxSource.attach."""
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
        """Remove the entries before ``upto`` from a queue's outbox. See OutboxSource.trim."""
        self._run(self._audit.trim(queue, audit_id, upto, jobs, size))

    def counts(self, queue: str) -> Counts:
        """Return the counts that Redis has for a queue's log."""
        return self._run(self._reads.counts(queue))

    def place(self, queue: str) -> object:
        """Return an object that identifies the server of a queue, as far as the server is known. See Client.place."""
        return self._client.place(queue)

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        """Wait up to ``wait_s`` seconds for new entries. Return the names of the queues that have new entries."""
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
