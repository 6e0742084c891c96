"""The SQL statements of the relay, for PostgreSQL and SQLite.

No statement of a turn reads ``rqc_inbox_parked``, so parked rows do not slow the turns.
"""

# ruff: noqa: S608 - statements are joined from texts of this module, never from values

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sql_audit.inbox.schema import AGE_MS

_ROW: Final = "id, job_id, task, args, options, packed"
_COLUMNS: Final = "queue, id, job_id, task, args, options, packed, created_at"
IDLE_MS: Final = 30_000
"""Milliseconds after which PostgreSQL ends the transaction of a relay that hangs, so that other relays can continue."""
_COUNTED: Final = "relayed = relayed + ?, held = held + ?, duplicate = duplicate + ?"
_IDLE: Final = f"set_config('idle_in_transaction_session_timeout', '{IDLE_MS}', true)"
_BY_INDEX: Final = tuple(
    f"set_config('enable_{plan}', 'off', true)" for plan in ("seqscan", "bitmapscan", "sort")
)
"""Expressions that make PostgreSQL read rows in the order of their index. PostgreSQL's statistics are usually from a
moment at which the table was nearly empty. Without these settings, PostgreSQL would read and sort the whole queue for
each batch."""


def queues_of(table: str, what: str = "name") -> str:
    """Return a statement that selects the expression ``what`` once for each queue in a table.

    The table needs an index that begins with the queue. The statement jumps from queue to queue in the index, so it
    reads one row per queue.
    """
    first = f"SELECT min(queue) FROM {table}"
    return (
        f"WITH RECURSIVE q(name) AS (SELECT ({first}) UNION ALL SELECT ({first} WHERE queue > q.name) FROM q"
        f" WHERE q.name IS NOT NULL) SELECT {what} FROM q WHERE name IS NOT NULL"
    )


class Statements(NamedTuple):
    """The statements for one kind of database, as texts for its driver. ``?`` marks a value."""

    ids: Callable[[Sequence[int]], tuple[Any, ...]]
    """Makes the values to bind for a list of row ids; the list must not be empty."""
    settings: str
    """Makes PostgreSQL read rows by their index, until the end of the transaction. Empty for SQLite."""
    queues: str
    """Selects the queues that have rows, or a batch that Redis has not answered yet."""
    lock: str
    """Selects and locks a queue's row of ``rqc_relay``. It selects no row if another relay has locked the row, or if
    the row is missing."""
    look: str
    """Selects a queue's row of ``rqc_relay`` without a lock."""
    exists: str
    create: str
    choose: str
    """Selects, and on PostgreSQL locks, the first rows of a queue. The second value is an id: only rows with greater
    ids are selected. The third value is the maximum number of rows. A row that a user's transaction is deleting is left
    out."""
    load: str
    """Selects rows by their ids, with the columns of ``choose``."""
    begin: str
    """Writes a new batch (slot, number, row ids and relay), and adds to the queue's counts."""
    change: str
    """Replaces the row ids of the batch that is being sent."""
    take: str
    """Stores the name of the relay that now sends the batch."""
    end: str
    """Ends a batch, and adds its rows to the counts in ``rqc_relay``."""
    forget: str
    """Deletes the call slot of a batch that was not carried out, because Redis may not know the slot."""
    delete: str
    """Deletes rows by their ids; on PostgreSQL not those that a user's statement is changing at that moment."""
    delete_rest: str
    """Deletes rows by their ids, also those that a user's statement is changing at that moment."""
    park: str
    """Copies rows into ``rqc_inbox_parked`` with a reason."""
    pack: str
    """Stores the job that a relay computed from a row of another program: the job's id, arguments and packed
    options."""
    has_id: str
    """Selects whether another row of the queue has the id of a job."""


def _statements(
    *,
    ids: Callable[[Sequence[int]], tuple[Any, ...]],
    among: str,
    age: str,
    sent: str,
    now: str,
    lock: str,
    delete: str = "DELETE FROM rqc_inbox WHERE {}",
    bound: str = "",
    settings: str = "",
) -> Statements:
    """Return the statements for one kind of database, made of SQL expressions in its dialect.

    ``ids`` makes the values for a list of ids, and ``among`` compares a column with them. ``age`` and ``sent`` are the
    ages of a row and of a batch in ms (``sent`` is -1 if the batch has no valid time). ``now`` is the present time.
    ``lock`` locks the selected rows and skips rows that other transactions have locked. ``bound`` are columns to select
    that make settings for the transaction.
    """
    rows = f"SELECT {_ROW}, {age} FROM rqc_inbox WHERE queue = ?"
    relay = f"SELECT slot, number, ids, {sent}, taken_by, relayed, held, duplicate{{}} FROM rqc_relay WHERE queue = ?"
    return Statements(
        ids=ids,
        settings=settings,
        queues=(
            f"{queues_of('rqc_inbox')} UNION SELECT queue FROM rqc_relay WHERE ids IS NOT NULL"
        ),
        lock=f"{relay.format(bound)}{lock}",
        look=relay.format(""),
        exists="SELECT 1 FROM rqc_relay WHERE queue = ?",
        create="INSERT INTO rqc_relay (queue) VALUES (?) ON CONFLICT DO NOTHING",
        choose=f"{rows} AND id > ? ORDER BY id LIMIT ?{lock}",
        load=f"{rows} AND id {among} ORDER BY id",
        begin=(
            "UPDATE rqc_relay SET slot = ?, number = ?, ids = ?, taken_by = ?"
            f", sent_at = {now}, {_COUNTED} WHERE queue = ?"
        ),
        change="UPDATE rqc_relay SET ids = ? WHERE queue = ?",
        take="UPDATE rqc_relay SET taken_by = ? WHERE queue = ?",
        end=f"UPDATE rqc_relay SET ids = NULL, {_COUNTED} WHERE queue = ?",
        forget="UPDATE rqc_relay SET slot = NULL WHERE queue = ?",
        delete=delete.format(f"queue = ? AND id {among}"),
        delete_rest=f"DELETE FROM rqc_inbox WHERE queue = ? AND id {among}",
        park=(
            f"INSERT INTO rqc_inbox_parked ({_COLUMNS}, why) SELECT {_COLUMNS}, ? FROM rqc_inbox"
            f" WHERE queue = ? AND id {among} ORDER BY id ON CONFLICT DO NOTHING"
        ),
        pack="UPDATE rqc_inbox SET job_id = ?, args = ?, packed = ? WHERE queue = ? AND id = ?",
        has_id="SELECT 1 FROM rqc_inbox WHERE job_id = ? AND queue = ? AND id <> ?",
    )


def _for_psycopg(made: Statements) -> Statements:
    given = made._asdict()
    texts = {n: v.replace("?", "%s") for n, v in given.items() if isinstance(v, str)}
    return Statements(**{**given, **texts})


STATEMENTS: Final = {
    "sqlite": _statements(
        ids=lambda ids: (json.dumps(ids),),
        among="IN (SELECT value FROM json_each(?))",
        age=AGE_MS["sqlite"],
        sent=AGE_MS["sqlite"].replace("created_at", "sent_at").replace(", 0)", ", -1)"),
        now="strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        lock="",
    ),
    "postgresql": _for_psycopg(
        _statements(
            ids=lambda ids: (list(ids), min(ids), max(ids)),
            among="= ANY(?) AND id BETWEEN ? AND ?",
            # The order makes PostgreSQL find the rows by the index of ids. By that of the jobs' ids it would read all
            # rows of the queue.
            delete=(
                "DELETE FROM rqc_inbox WHERE ctid = ANY(ARRAY(SELECT ctid FROM rqc_inbox WHERE {} ORDER BY id))"
            ),
            age=AGE_MS["postgresql"],
            sent=AGE_MS["postgresql"].replace("created_at", "sent_at").replace("ELSE 0", "ELSE -1"),
            now="clock_timestamp()",
            lock=" FOR UPDATE SKIP LOCKED",
            # Until the transaction's end, and without a round trip of their own.
            bound="".join(f", {setting}" for setting in (_IDLE, *_BY_INDEX)),
            settings=f"SELECT {', '.join(_BY_INDEX)}",
        )
    ),
}
"""The statements for each kind of database, by its name (``sqlite`` or ``postgresql``)."""
