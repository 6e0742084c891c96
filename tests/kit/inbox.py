"""A user's database with an inbox, a queue on a real server, and relays between both."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rq_core.connections.client import Client
from rq_core.model.events import decode
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.plan import Patience
from sql_audit.inbox import schema
from sql_audit.inbox.place import check_place
from sql_audit.inbox.relay import Relay, RelayOutcome
from sql_audit.inbox.session import RelayRow, Session

QUEUE = "mail"
TABLES = ("rqc_inbox", "rqc_relay")
_LONG_AGO = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{} seconds')",
    "postgresql": "clock_timestamp() - interval '{} seconds'",
}
OnStep = Callable[[str], None]


class Stage:
    """A user's database with an inbox, a session of the kind that relays use, and a client of a Redis server."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        schema.migrate(database_url)
        self.session = Session(database_url)
        self.client = Client(redis_url)

    def close(self) -> None:
        self.session.close()
        self.session.engine.dispose()
        self.client.close()

    # The user's side.

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run one statement in a transaction, and return its rows. Each value replaces a ``?`` in the statement."""
        with self.session.transaction() as transaction:
            result = transaction.run(self.session.text(statement), *values)
            return list(result.all()) if result.returns_rows else []

    def insert(self, *jobs: str, queue: str = QUEUE, task: str = "send", **columns: Any) -> None:
        """Insert one row for each job id, in one transaction.

        The rows have the column ``packed``, as rows of rq-core's producers have, unless ``options`` or ``packed=None``
        is given.
        """
        columns.setdefault("packed", None if "options" in columns else "{}")
        names = ["queue", "task", "job_id", *columns]
        places = ", ".join("?" * len(names))
        statement = f"INSERT INTO rqc_inbox ({', '.join(names)}) VALUES ({places})"
        with self.session.transaction() as transaction:
            for job in jobs:
                transaction.run(self.session.text(statement), queue, task, job, *columns.values())

    def rows(self, queue: str = QUEUE) -> list[str]:
        """Return the ids of the jobs that have rows in the inbox."""
        found = self.sql("SELECT job_id FROM rqc_inbox WHERE queue = ? ORDER BY id", queue)
        return [job for (job,) in found]

    def parked(self) -> dict[str, str]:
        """Return the reasons of parked rows, by job id."""
        return dict(map(tuple, self.sql("SELECT job_id, why FROM rqc_inbox_parked")))

    def relay_row(self, queue: str = QUEUE) -> RelayRow:
        with self.session.transaction() as transaction:
            found = transaction.look(queue)
        assert found is not None
        return found

    def age_batches(self, seconds: int = 10) -> None:
        """Make the batches that relays are sending look older, by this number of seconds."""
        long_ago = _LONG_AGO[self.session.engine.dialect.name].format(seconds)
        self.sql(f"UPDATE rqc_relay SET sent_at = {long_ago}")

    def age_rows(self, seconds: int) -> None:
        """Make the rows of the inbox look older, by this number of seconds."""
        long_ago = _LONG_AGO[self.session.engine.dialect.name].format(seconds)
        self.sql(f"UPDATE rqc_inbox SET created_at = {long_ago}")

    def saved(self) -> Callable[[], None]:
        """Save the state of the database. Return a function that restores it."""
        tables = {table: self.sql(f"SELECT * FROM {table}") for table in TABLES}

        def set_back() -> None:
            with self.session.transaction() as transaction:
                for table, rows in tables.items():
                    transaction.run(f"DELETE FROM {table}")
                    for row in rows:
                        places = ", ".join("?" * len(row))
                        statement = f"INSERT INTO {table} VALUES ({places})"
                        transaction.run(self.session.text(statement), *row)

        return set_back

    # Relays.

    @contextlib.contextmanager
    def relay(self, on_step: OnStep = lambda _: None, **options: Any) -> Iterator[Relay]:
        """Yield a relay with connections of its own."""
        session = Session(self.database_url)
        try:
            with Client(self.redis_url, patience=Patience(1.0, 3.0)) as client:
                yield Relay(session, client, check_place(session), on_step=on_step, **options)
        finally:
            session.close()
            session.engine.dispose()

    def hand_over(self, on_step: OnStep = lambda _: None) -> None:
        """Let a relay make turns until it has nothing left to do."""
        with self.relay(on_step) as relay:
            finish(relay)

    def forked(self, on_step: OnStep) -> int:
        """Call ``hand_over`` in a forked child process, and return its process id."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.hand_over(on_step)
                status = 0
            finally:
                os._exit(status)
        return child

    # Redis.

    def drain(self, queue: str = QUEUE) -> list[str]:
        """Run all jobs of a queue to their ends, and return their ids. A new job may then have one of these ids."""
        ran: list[str] = []
        while True:
            taken = self.client.run(claims.claim(queue, "w-1", limit=100)).jobs
            if not taken:
                return sorted(ran)
            done = [(claim.id, claim.fence) for claim in taken]
            self.client.run(claims.complete(queue, "w-1", done))
            ran += [claim.id for claim in taken]

    def enqueued(self, queue: str = QUEUE) -> Counter[str]:
        """Return how many jobs with each id were ever enqueued, according to the outbox."""
        key = queue_keys(queue)("outbox")
        (found,) = self.client.run(
            self.client.calls.delivery.ask([["XRANGE", key, "-", "+"]], queue)
        )
        entries = [
            decode(entry_id, dict(zip(f[::2], f[1::2], strict=True))) for entry_id, f in found
        ]
        return Counter(
            job.job_id for entry in entries if entry.event == "enqueued" for job in entry.jobs
        )


def finish(relay: Relay) -> None:
    """Let the relay make turns until no queue has work for it."""
    while any([relay.turn(name) is RelayOutcome.MOVED for name in relay.queues()]):  # noqa: C419 - a turn each
        pass


def at(step: str, times: int, does: Callable[[], object]) -> OnStep:
    """Return a function for a relay's ``on_step``. It calls ``does`` when ``step`` occurs for the ``times``-th time."""
    seen: Counter[str] = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        if (name, seen[name]) == (step, times):
            does()

    return on_step


def killing(step: str, times: int, number: int = signal.SIGKILL) -> OnStep:
    """Return a function for a relay's ``on_step``. At the given step it sends a signal to its own process."""
    return at(step, times, lambda: os.kill(os.getpid(), number))


def sorted_ids(*parts: Sequence[str]) -> list[str]:
    return sorted(job for part in parts for job in part)
