"""Shows the state of an inbox to an operator, and lists, retries and drops its parked rows. Relays do not use this
module.
"""

# ruff: noqa: S608 - statements are joined from texts of this module, never from values

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sql_audit.errors import InboxDamaged
from sql_audit.inbox.schema import AGE_MS, COLUMNS, PARKED
from sql_audit.inbox.session import Session, Transaction
from sql_audit.inbox.statements import queues_of

COUNT_MAX: Final = 100_000
"""Maximum number of rows that ``inbox status`` counts, so that the command stays fast for a full inbox."""
_JOB: Final = "CAST(job_id AS text)"
_ROW: Final = "queue, id, job_id, task, args, options, packed, created_at"


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of one queue of an inbox."""

    queue: str
    rows: int
    """Number of rows that are not in Redis yet. If there are more rows than are counted, this is the number of the
    counted rows."""
    oldest_ms: int | None
    """Milliseconds since the first row that is not in Redis yet was inserted; None: there is no such row."""
    parked: int
    """Number of parked rows. If there are more rows than are counted, this is the number of the counted rows."""
    relayed: int
    """Number of rows that became jobs in Redis so far."""
    held: int
    """Number of rows that did not become jobs, because another job has the unique name, or because a cap was full and
    discards further jobs."""
    duplicate: int
    """Number of rows that did not become jobs, because Redis has a job with the same id, or still remembers the id of
    an ended job."""
    sending: int
    """Number of rows in the batch that a relay has sent, or is about to send, to Redis. 0: there is no such batch."""
    slot: str | None
    number: int | None
    """The number of the last batch's call to Redis within its call slot ``slot``. Redis carries out each number of a
    slot only once."""
    sent_ms: int | None
    """Milliseconds since the rows of the unanswered batch were chosen; None: no batch is unanswered."""
    relay: str | None
    """The name of the relay that sent the last batch."""
    damage: str | None = None
    """An error message if the queue's row of ``rqc_relay`` cannot be read. The fields that come from this row are then
    empty. None: the row can be read."""


class QueueStates(NamedTuple):
    """The states of an inbox's queues, and the number of queues that were not read."""

    queues: list[QueueState]
    left_out: int
    """Number of queues whose state was not read, because the caller asked for fewer queues."""


def states(session: Session) -> list[QueueState]:
    """Return the states of all queues of an inbox, ordered by the queues' names."""
    return look(session).queues


def look(
    session: Session,
    *,
    rows_max: int = COUNT_MAX,
    parked_max: int = COUNT_MAX,
    queues_max: int | None = None,
) -> QueueStates:
    """Return the states of the first ``queues_max`` queues of an inbox, ordered by name.

    In each queue, at most ``rows_max`` rows and ``parked_max`` parked rows are counted. Parked rows are counted in at
    most ``rows_max`` queues.
    """
    with session.transaction() as transaction:
        # First, since it sets how PostgreSQL reads tables.
        waiting = set(map(_text, transaction.queues()))
        parked = _parked_queues(transaction, session, parked_max, rows_max)
        known = {_text(name) for (name,) in transaction.run("SELECT queue FROM rqc_relay")}
        names = sorted(known | parked.keys() | waiting)
        shown = names[:queues_max]
        found = [_state(transaction, session, n, parked.get(n, 0), rows_max) for n in shown]
    return QueueStates(found, len(names) - len(shown))


def _state(
    transaction: Transaction, session: Session, queue: str, parked: int, rows_max: int
) -> QueueState:
    text, age = session.text, AGE_MS[session.engine.dialect.name]
    counted = "SELECT count(*) FROM (SELECT 1 FROM rqc_inbox WHERE queue = ? LIMIT ?) AS n"
    rows = transaction.run(text(counted), queue, rows_max).scalar_one()
    first = f"SELECT {age} FROM rqc_inbox WHERE queue = ? ORDER BY id LIMIT 1"
    oldest = transaction.run(text(first), queue).scalar()
    row, damage = None, None
    try:
        row = transaction.look(queue)
    except InboxDamaged as error:
        damage = str(error)
    sending = len(row.ids) if row is not None and row.ids is not None else 0
    return QueueState(
        queue=queue,
        rows=rows,
        oldest_ms=oldest,
        parked=parked,
        relayed=row.relayed if row else 0,
        held=row.held if row else 0,
        duplicate=row.duplicate if row else 0,
        sending=sending,
        slot=row.slot if row else None,
        number=row.number if row else None,
        sent_ms=max(row.age_ms, 0) if row is not None and row.ids is not None else None,
        relay=row.taken_by if row else None,
        damage=damage,
    )


def _parked_queues(
    transaction: Transaction, session: Session, parked_max: int, queues_max: int
) -> dict[str, int]:
    counted = f"(SELECT count(*) FROM (SELECT 1 FROM {PARKED} WHERE queue = q.name LIMIT ?) AS p)"
    select = session.text(f"{queues_of(PARKED, f'name, {counted}')} LIMIT ?")
    found = transaction.run(select, parked_max, queues_max)
    counts: Counter[str] = Counter()
    for queue, count in found:
        counts[_text(queue)] += count
    return counts


def _text(queue: str | bytes) -> str:
    """Return a queue's name as text. On SQLite the column may have bytes instead, which a person has written."""
    return queue if isinstance(queue, str) else queue.decode("utf-8", "backslashreplace")


def parked_rows(
    session: Session, *, queue: str | None = None, most: int = 100
) -> list[dict[str, Any]]:
    """Return up to ``most`` parked rows (rows that could not become jobs), newest first, from ``queue`` or from all
    queues.

    Each row is a dict from column name to text; only ``id`` is an int.
    """
    names = COLUMNS[PARKED].split()
    # On SQLite, a person may have written bytes into any column of this table.
    columns = ", ".join(n if n == "id" else f"CAST({n} AS text)" for n in names)
    where, values = ("WHERE queue = ?", (queue,)) if queue is not None else ("", ())
    statement = f"SELECT {columns} FROM {PARKED} {where} ORDER BY parked_at DESC, id DESC LIMIT ?"
    with session.transaction() as transaction:
        found = transaction.run(session.text(statement), *values, most)
        return [dict(zip(names, row, strict=True)) for row in found]


def retry_rows(session: Session, jobs: Sequence[str], *, queue: str | None = None) -> list[str]:
    """Move parked rows back into the inbox, and return the ids of their jobs.

    ``jobs`` chooses rows by the ids of their jobs; empty means all parked rows. ``queue`` limits the rows to one queue.
    A row stays parked if the inbox has another row with the same job id.
    """
    which, values = _which(jobs, queue)
    insert = f"INSERT INTO rqc_inbox ({_ROW}) SELECT {_ROW} FROM {PARKED} WHERE {which} ON CONFLICT DO NOTHING"
    select = f"SELECT {_JOB} FROM {PARKED} WHERE {which} AND EXISTS ({_MOVED})"
    delete = f"DELETE FROM {PARKED} WHERE {which} AND EXISTS ({_MOVED})"
    with session.transaction() as transaction:
        transaction.run(session.text(insert), *values)
        moved = [job for (job,) in transaction.run(session.text(select), *values)]
        transaction.run(session.text(delete), *values)
    return moved


_MOVED: Final = (
    f"SELECT 1 FROM rqc_inbox i WHERE i.queue = {PARKED}.queue AND i.id = {PARKED}.id"
    f" AND i.job_id = {PARKED}.job_id"
)


def drop_rows(session: Session, jobs: Sequence[str], *, queue: str | None = None) -> list[str]:
    """Delete parked rows, and return the ids of their jobs. ``jobs`` and ``queue`` choose the rows as in
    :func:`retry_rows`.
    """
    which, values = _which(jobs, queue)
    with session.transaction() as transaction:
        found = transaction.run(
            session.text(f"SELECT {_JOB} FROM {PARKED} WHERE {which}"), *values
        ).all()
        transaction.run(session.text(f"DELETE FROM {PARKED} WHERE {which}"), *values)
    return [job for (job,) in found]


def _which(jobs: Sequence[str], queue: str | None) -> tuple[str, tuple[Any, ...]]:
    parts, values = ["1 = 1"], []
    if queue is not None:
        parts.append("queue = ?")
        values.append(queue)
    if jobs:
        parts.append(f"job_id IN ({', '.join('?' * len(jobs))})")
        values += jobs
    return " AND ".join(parts), tuple(values)
