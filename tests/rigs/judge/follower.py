"""Reads the outbox of a queue while it grows, and passes the entries to a judge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from rq_core.connections.client import Client
from rq_core.model.events import Entry, decode

READ: Final = 5_000


class Judge(Protocol):
    """A judge that gets the entries of a log in their order."""

    def feed(self, entries: Iterable[Entry]) -> None:
        """Judge the next entries of the log. The caller passes every entry once."""


J = TypeVar("J", bound=Judge)


class Follower(Generic[J]):
    """Passes the entries of an outbox to a judge. It attaches itself like a mirror, so that Redis trims no unread
    entry."""

    def __init__(self, client: Client, queue: str, judge: J) -> None:
        self._client = client
        self._queue = queue
        self._judge = judge
        self._last: str | None = None
        client.run(client.calls.audit.attach(queue, "judge"))

    def catch_up(self) -> J:
        """Pass the new entries to the judge, and return the judge.

        Raises AssertionError if entries were trimmed before they were read.
        """
        while True:
            found = self._client.run(
                self._client.calls.audit.read_outbox(self._queue, self._last or "-", READ)
            )
            fresh = [(i, raw) for i, raw in found if i != self._last]
            if self._last is not None and (not found or found[0][0] != self._last):
                raise AssertionError(f"the outbox of {self._queue} was trimmed while it was read")
            if not fresh:
                return self._judge
            self._judge.feed(decode(i, raw) for i, raw in fresh)
            self._last = fresh[-1][0]
