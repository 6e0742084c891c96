"""The calls that the mirror makes to Redis, by a client. Tests have a small source of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rq_core.connections.client import Client

logger = logging.getLogger("rq_core.audit")

SHARD_PATIENCE_S: Final = 0.2
"""Seconds that the mirror waits for a shard of a cluster before it goes on with the others."""
SHARD_ANSWERS_S: Final = 1.0
"""Seconds that it waits for the answer to a call there. What it calls may be sent again at any time."""
RawFields = Mapping[str, str]
"""The fields of one outbox entry as they came. Bytes that are not UTF-8 stand in them as lone
surrogates (Python's ``surrogateescape``), so that nothing is lost."""


class Counts(Protocol):
    """The numbers that Redis keeps of a queue."""

    @property
    def backlog(self) -> int:
        """Events that wait to be mirrored."""


class OutboxSource(Protocol):
    """The Redis side of the mirror."""

    @property
    def prefix(self) -> str:
        """The prefix of the queues' keys."""

    @property
    def url(self) -> str:
        """The server's URL."""

    def queues(self) -> list[str]:
        """The queues that exist, in any order."""

    def stamp(self, queue: str) -> str | None:
        """The mark that Redis keeps of a queue; empty if it has none, None if there is no such queue."""

    def holder(self, queue: str) -> str | None:
        """The id of the audit database that mirrors a queue; None: none does."""

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        """Turn the audit log of a queue on, with baseline events for what is alive.

        ``known`` is an epoch that SQL has: a queue in an earlier one starts another beyond it, with
        a baseline, and no new epoch will be at or below it. Does nothing if it is on, and in a later
        one. ``stamp`` is the mark by which SQL knows the queue, which gets it if it has none.
        Raises rq_core.errors.AuditElsewhere if another database has it, and AuditStampDiffers if it
        has another mark.
        """

    def read_outbox(self, queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        """Return up to ``count`` entries from ``start`` on, inclusive ("-": the oldest), oldest first."""

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Sequence[tuple[str, RawFields]]:
        """Return up to ``count`` entries before ``before``, exclusive, newest first."""

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        """Drop the entries before ``upto`` and take ``jobs`` events and ``size`` bytes off the
        backlog.

        An event about the queue counts as one; bytes are those of type, jobs, data and why.

        Does nothing if ``upto`` is not beyond the last trim, or not there.
        """

    def counts(self, queue: str) -> Counts:
        """Return the numbers that Redis keeps of a queue."""

    def place(self, queue: str) -> object:
        """Return the node of a cluster that has a queue, if it is known; None without a cluster."""

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        """Wait up to ``wait_s`` for entries after ``last`` (queue → entry id, or "0-0"), which is
        not empty.
        """

    def close(self) -> None:
        """Close all connections."""


class Outbox:
    """The outboxes of a server's queues: an :class:`OutboxSource` of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = client.run
        self._reads = client.calls.reads
        self._audit = client.calls.audit
        self._complaint = ""

    @property
    def prefix(self) -> str:
        """See OutboxSource."""
        return self._client.prefix

    @property
    def url(self) -> str:
        """See OutboxSource."""
        return self._client.url

    def queues(self) -> list[str]:
        """See OutboxSource. Names in the list that no queue can have are logged once and left out."""
        listed = self._run(self._reads.listed())
        if listed.complaint not in ("", self._complaint):
            logger.warning("%s", listed.complaint)
        self._complaint = listed.complaint
        return listed.queues

    def stamp(self, queue: str) -> str | None:
        """See OutboxSource."""
        return self._run(self._reads.stamp(queue))

    def holder(self, queue: str) -> str | None:
        """See OutboxSource."""
        audit, audit_id, _ = self._run(self._reads.attached(queue))
        return audit_id if audit == "on" else None

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        """See OutboxSource."""
        self._run(self._audit.attach(queue, audit_id, known, stamp))

    def read_outbox(self, queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        """See OutboxSource."""
        return self._run(self._audit.read_outbox(queue, start, count))

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Sequence[tuple[str, RawFields]]:
        """See OutboxSource."""
        return self._run(self._audit.read_outbox_back(queue, before, count))

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        """See OutboxSource."""
        self._run(self._audit.trim(queue, audit_id, upto, jobs, size))

    def counts(self, queue: str) -> Counts:
        """See OutboxSource."""
        return self._run(self._reads.counts(queue))

    def place(self, queue: str) -> object:
        """See OutboxSource."""
        return self._client.place(queue)

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        """See OutboxSource."""
        return self._client.wait_outbox(last, wait_s)

    def close(self) -> None:
        """See OutboxSource."""
        self._client.close()


def open_source(url: str, prefix: str) -> OutboxSource:
    """The source at a Redis URL. It connects when it is first used."""
    # Not needed to ask SQL a question, and slow to import.
    from rq_core.connections.client import Client
    from rq_core.model.lib.url import is_cluster
    from rq_core.protocol.engine.plan import Patience

    # The queues of a shard that is down are tried again later: those of the others must not wait for them.
    patience = Patience(SHARD_PATIENCE_S, SHARD_ANSWERS_S) if is_cluster(url) else None
    return Outbox(Client(url, prefix=prefix, name="audit", patience=patience))
