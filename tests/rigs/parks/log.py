"""Copies the log of one queue into an SQLite file while a proof runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.schemas import lay_schema


class Told(NamedTuple):
    """One event of a job: its type, its time (Unix ms), and its other fields."""

    job: str
    event: str
    at_ms: int
    facts: Mapping[str, Any]


class Log:
    """The log of one queue. Use it in a ``with`` statement."""

    def __init__(
        self,
        client: Client,
        place: Path,
        queue: str,
        *,
        of: Log | None = None,
        url: str | None = None,
    ) -> None:
        """The log of another queue may be given as ``of``. Both logs then use the database of ``of``. Otherwise the
        database is ``url``, which must be empty, or an SQLite file in ``place``."""
        self._client = client
        self._queue = queue
        self._of = of
        if of is None:
            self.database = Database(url or f"sqlite:///{place}/{queue}.db")
            lay_schema(self.database)
        else:
            self.database = of.database
        self._mirror = Mirror(Outbox(client), self.database, queue)
        self.follow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._of is None:
            self.database.close()

    def follow(self) -> None:
        """Mirror the entries of the outbox that SQL does not have yet."""
        auditlog.drain(self._mirror)

    def events(self, *kinds: str) -> Iterator[Told]:
        """Yield the copied events of these types, in their order."""
        for row in auditlog.events(self.database, self._queue):
            if row["type"] in kinds:
                yield Told(row["job_id"], row["type"], row["at_ms"], facts_in(row["detail"]))

    def count(self, kind: str) -> Counter[str]:
        """Return the number of events of this type that each job has."""
        return Counter(each.job for each in self.events(kind))

    def unended(self) -> int:
        """Return the number of jobs that are still in Redis."""
        key = queue_keys(self._queue)("jobs")
        (found,) = self._client.run(self._client.calls.delivery.ask([["HLEN", key]]))
        return int(found)

    def problems(self) -> list[str]:
        """Return what ``audit verify`` finds in the log."""
        result = verify(self.database)
        found = [f"{each.invariant}: {each.says}" for each in result.violations]
        if result.verdict is not LogVerdict.HOLDS:
            found.append(f"verify says {result.verdict}")
        return found
