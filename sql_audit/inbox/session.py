"""A relay's connection to the user's database, and its transactions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from rq_core.errors import InboxMissing
from sql_audit.errors import InboxDamaged, InboxUnavailable
from sql_audit.inbox.database import explaining, inbox_engine, inbox_url, shown
from sql_audit.inbox.schema import missing_tables
from sql_audit.inbox.statements import STATEMENTS


class RelayRow(NamedTuple):
    """A queue's row of ``rqc_relay``: the batch that is being sent, its call slot and number, and the relays'
    counts.
    """

    slot: str | None
    number: int | None
    ids: list[int] | None
    """The ids of the rows in the batch that is being sent; None: no batch is being sent."""
    age_ms: int
    """Milliseconds since the rows of the batch were chosen, by the database's clock. Negative: the stored time is not
    valid, or it is in the future."""
    taken_by: str | None
    relayed: int
    held: int
    duplicate: int

    @property
    def handled(self) -> int:
        """Number of rows that have left the inbox so far because Redis answered their batch."""
        return self.relayed + self.held + self.duplicate


class RowCounts(NamedTuple):
    """How many rows left the inbox, by what became of them."""

    relayed: int = 0
    """The number of rows that became jobs."""
    held: int = 0
    """Number of rows that Redis did not enqueue, because another job had the unique name or a cap was full."""
    duplicate: int = 0
    """Number of rows that Redis did not enqueue, because it had a job with the same id or still remembered the id."""


NOTHING: Final = RowCounts()
SHOWN_MAX: Final = 60
"""Maximum number of characters of an altered value in an error."""
BATCH_ALTERED: Final = (
    "the ids of the batch of queue {!r} in rqc_relay are {!r}, not a JSON array of ids, so relays leave the queue"
    " alone. The batch may have been carried out: look in the queue for the jobs of the first rows, delete the rows"
    " whose jobs were there, and set ids to NULL"
)
COUNTS_ALTERED: Final = (
    "the counts of queue {!r} in rqc_relay are {}, not whole numbers, so relays leave the queue alone: set relayed,"
    " held and duplicate to whole numbers"
)


class InboxRow(NamedTuple):
    """A row of ``rqc_inbox``: one job that is not in Redis yet."""

    id: int
    job_id: str
    task: str
    args: str
    options: str | None
    packed: str | None
    age_ms: int
    """Milliseconds since the row was inserted, by the database's clock."""


class Session:
    """One connection to a user's database, opened at its first use. Only one thread may use the session at a time."""

    def __init__(self, url: str, *, writes: bool = True) -> None:
        """Prepare the session; nothing is opened yet. Raise InboxUrlInvalid if ``url`` is not valid, and
        InboxUnavailable if the driver is not installed.

        On SQLite, a session without ``writes`` does not take the write lock.
        """
        self.address = inbox_url(url)
        self.url = shown(self.address)
        self.engine = inbox_engine(self.address, writes=writes)
        if self.engine.dialect.name == "postgresql":
            # In the text of BEGIN: it takes no round trip, and ends with the transaction.
            self.engine = self.engine.execution_options(isolation_level="READ COMMITTED")
        self.statements = STATEMENTS[self.engine.dialect.name]
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction, yield it, and commit it after the block.

        Raise InboxRefused or InboxUnavailable for an error of the driver. After any error the connection is closed. If
        the COMMIT fails, the transaction may have been committed.
        """
        with explaining(self.address):
            if self._connection is None:
                self._connection = self.engine.connect()
            try:
                with self._connection.begin():
                    yield Transaction(self._connection, self)
            except BaseException:
                self.close()
                raise

    def text(self, statement: str) -> str:
        """Return a statement in the syntax of the database's driver. ``?`` in ``statement`` marks a value."""
        return statement if self.engine.dialect.name == "sqlite" else statement.replace("?", "%s")

    def file(self) -> tuple[int, int] | None:
        """Return the device and the inode of the SQLite file; None for PostgreSQL. Raise InboxUnavailable."""
        if self.engine.dialect.name != "sqlite":
            return None
        try:
            found = Path(self.address.database or "").stat()
        except OSError as error:
            raise InboxUnavailable(url=self.url, why=str(error)) from None
        return found.st_dev, found.st_ino

    def version(self) -> int:
        """Return a number that changes with each commit of another connection. Only for SQLite."""
        with explaining(self.address):
            if self._connection is None:
                self._connection = self.engine.connect()
            driver: Any = self._connection.connection.driver_connection
            found: int = driver.execute("PRAGMA data_version").fetchone()[0]
            return found

    def close(self) -> None:
        """Close the connection. The next use of the session opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # The server may be gone, and the error that says so is on its way already.
            with contextlib.suppress(Exception):
                connection.invalidate()
            with contextlib.suppress(Exception):
                connection.close()
        # The place is read over connections of the pool.
        self.engine.dispose()


def require_tables(session: Session) -> None:
    """Raise InboxMissing if the database lacks a table of the inbox, and InboxForeign if such a table belongs to
    another program."""
    with session.transaction() as transaction:
        if missing_tables(transaction.connection):
            raise InboxMissing(url=session.url)


class Transaction:
    """The statements of a relay's turn, within one transaction."""

    def __init__(self, connection: Connection, session: Session) -> None:
        self.connection = connection
        self._said = session.statements
        self._url = session.url

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement, and return its result."""
        return self.connection.exec_driver_sql(statement, values)

    def queues(self) -> list[str]:
        """Return the queues that have rows, or a batch that Redis has not answered."""
        if self._said.settings:
            self.run(self._said.settings)
        return [name for (name,) in self.run(self._said.queues)]

    def lock(self, queue: str) -> RelayRow | None:
        """Lock and return a queue's row of ``rqc_relay``. A missing row is created.

        Return None if another relay has locked the row. Raise InboxDamaged.
        """
        found = self.run(self._said.lock, queue).first()
        if found is None:
            if self.run(self._said.exists, queue).first() is not None:
                return None
            self.run(self._said.create, queue)
            found = self.run(self._said.lock, queue).first()
            if found is None:
                return None
        return _relay_row(self._url, queue, found)

    def look(self, queue: str) -> RelayRow | None:
        """Return a queue's row of ``rqc_relay`` without a lock; None if there is no row. Raise InboxDamaged."""
        found = self.run(self._said.look, queue).first()
        return None if found is None else _relay_row(self._url, queue, found)

    def choose(self, queue: str, most: int, after: int = 0) -> list[InboxRow]:
        """Return the first ``most`` rows of a queue whose ids are greater than ``after``."""
        return list(map(_inbox_row, self.run(self._said.choose, queue, after, most).all()))

    def load(self, queue: str, ids: Sequence[int]) -> list[InboxRow]:
        """Return the rows with these ids, in ascending order of ids. Missing rows are left out."""
        found = self.run(self._said.load, queue, *self._said.ids(ids)).all() if ids else []
        return list(map(_inbox_row, found))

    def begin(
        self,
        queue: str,
        slot: str,
        number: int,
        ids: Sequence[int],
        relay: str,
        counts: RowCounts = NOTHING,
    ) -> None:
        """Write the queue's next batch, and add the counts of the preceding batch."""
        self.run(self._said.begin, slot, number, json.dumps(ids), relay, *counts, queue)

    def change(self, queue: str, ids: Sequence[int]) -> None:
        """Replace the list of row ids of the batch that is being sent."""
        self.run(self._said.change, json.dumps(ids), queue)

    def take(self, queue: str, relay: str) -> None:
        """Record that the relay ``relay`` sends the batch from now on."""
        self.run(self._said.take, relay, queue)

    def end(self, queue: str, counts: RowCounts) -> None:
        """End the queue's batch without beginning another, and add ``counts`` to the queue's counts."""
        self.run(self._said.end, *counts, queue)
        if counts == NOTHING:
            self.run(self._said.forget, queue)

    def delete(self, queue: str, ids: Sequence[int]) -> None:
        """Delete the rows with these ids."""
        if ids:
            values = (queue, *self._said.ids(ids))
            if self.run(self._said.delete, *values).rowcount != len(ids):
                self.run(self._said.delete_rest, *values)

    def park(self, queue: str, ids: Sequence[int], why: str) -> None:
        """Move the rows with these ids into ``rqc_inbox_parked``, with the reason ``why``."""
        if not ids:
            return
        # Both databases refuse NUL in a text, or end the text there.
        self.run(self._said.park, why.replace("\0", "\\0"), queue, *self._said.ids(ids))
        self.delete(queue, ids)

    def pack(self, queue: str, row: InboxRow, job_id: str, args: str, packed: str) -> bool:
        """Store the job that a relay computed from a row that another program inserted: its id, arguments and packed
        options. Return False if another row has the same job id.
        """
        if job_id != row.job_id and self.run(self._said.has_id, job_id, queue, row.id).first():
            return False
        self.run(self._said.pack, job_id, args, packed, queue, row.id)
        return True


_inbox_row = InboxRow._make


ID_MAX: Final = 2**63 - 1


def _relay_row(url: str, queue: str, found: Any) -> RelayRow:
    """Make a RelayRow from the columns of ``rqc_relay``. Raise InboxDamaged if the ids or the counts have a wrong
    form.
    """
    slot, number, ids, age, taken_by, relayed, held, duplicate, *_ = found
    batch = None if ids is None else _batch(ids)
    if ids is not None and batch is None:
        what = BATCH_ALTERED.format(queue[:SHOWN_MAX], str(ids)[:SHOWN_MAX])
        raise InboxDamaged(url=url, what=what)
    counts = (relayed, held, duplicate)
    if any(type(count) is not int for count in counts):
        what = COUNTS_ALTERED.format(queue[:SHOWN_MAX], str(counts)[:SHOWN_MAX])
        raise InboxDamaged(url=url, what=what)
    return RelayRow(slot, number, batch, age or 0, taken_by, relayed, held, duplicate)


def _batch(text: Any) -> list[int] | None:
    """Parse the ids of a batch; return None if the text is not a JSON array of ids."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    return found if all(type(each) is int and 0 <= each <= ID_MAX for each in found) else None
