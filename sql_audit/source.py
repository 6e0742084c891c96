"""What the mirror needs of Redis. :class:`rq_core.client.Client` offers it; tests bring a small one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

RawFields = Mapping[bytes, bytes] | Mapping[str, bytes]
"""The fields of one outbox entry as they came: names as bytes or text, values as bytes."""


class OutboxSource(Protocol):
    """The Redis side of the mirror."""

    def queues(self) -> list[str]:
        """The queues that exist, in any order."""

    def attach(self, queue: str, audit_id: str) -> None:
        """Turn the audit trail of a queue on, with baseline events for what is alive.

        Does nothing if it is on. Raises rq_core.errors.AuditElsewhere if another database has it.
        """

    def read_outbox(self, queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        """Up to ``count`` entries from ``start`` on, inclusive ("-": the oldest), oldest first."""

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        """Drop the entries before ``upto`` and take ``jobs`` events and ``size`` bytes off the backlog.

        Does nothing if ``upto`` is not beyond the last trim.
        """

    def wait_outbox(self, last: Mapping[str, str], timeout_s: float) -> set[str]:
        """Wait up to ``timeout_s`` seconds for entries after ``last`` (queue → entry id, or "0-0")."""


def open_source(url: str, prefix: str) -> OutboxSource:
    """The source at a Redis URL. Raises rq_core.errors.ServerError if there is none."""
    # By name, so that the mirror can be imported and tested without a client.
    client = importlib.import_module("rq_core.client").Client
    return cast(OutboxSource, client(url, prefix=prefix))
