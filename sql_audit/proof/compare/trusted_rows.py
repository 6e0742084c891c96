"""Decides whether the row of a job in SQL may be used to correct the job's state in Redis.

It may if the row agrees with the job's events, and if the batches of these events are as the mirror committed them.
``audit verify`` checks all rows and batches. This module checks only jobs whose states in Redis and SQL differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, text

from rq_core.model.durable.box_log import Distrust
from rq_core.model.events import OutboxId
from rq_core.model.idempotency import read_result
from rq_core.model.job_ends import claim_of
from sql_audit.proof.row_check import wrong_rows
from sql_audit.proof.trusted_batches import TrustedBatches
from sql_audit.store.connection.database import Database
from sql_audit.store.storable_text import clean

JOBS_CHUNK: Final = 500
"""Maximum number of jobs whose entries one statement reads."""
_OF_JOBS: Final = (
    # Without the cast, SQLite would read all events of the queue (see rebuild.py).
    "SELECT job_id, epoch, seq FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids"
)
_ENTRIES: Final = text(_OF_JOBS).bindparams(bindparam("ids", expanding=True))
_ENTRIES_OF_TYPES: Final = text(f"{_OF_JOBS} AND type IN :types").bindparams(
    bindparam("ids", expanding=True), bindparam("types", expanding=True)
)


_FIRST: Final = text(
    "SELECT epoch, seq FROM job_event WHERE queue = :queue ORDER BY epoch, seq, ordinal LIMIT 1"
)


_IN_ENTRY: Final = text(
    "SELECT 1 FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq LIMIT 1"
)


def why_not_rows(
    database: Database, connection: Connection, queue: str, ids: Iterable[str]
) -> dict[str, str]:
    """Return, by job id, the reason why a job's row in SQL must not correct the job's state in Redis. Jobs whose rows
    may be used are left out.

    ``connection`` must read one snapshot of ``database``.
    """
    asked = sorted(job_id for job_id in ids if clean(job_id) == job_id)
    found = {
        job_id: f"its row in SQL is not what its events say ({says}); run `rq-core audit verify`"
        for job_id, says in wrong_rows(database, connection, queue, asked).items()
    }
    entries, batches = (
        _entries_of(connection, queue, asked),
        TrustedBatches(database, connection, queue, None),
    )
    for job_id in asked:
        why = None if job_id in found else batches.why_not(entries[job_id])
        if why is not None:
            found[job_id] = why
    return found


def distrust_of(
    database: Database,
    queue: str,
    types: Collection[str],
    lines: Mapping[str, str] | None = None,
) -> Distrust:
    """Return a function that checks whether a repair of Redis may use the log's events of some types.

    The function returns, by job id, the reason why a job's events must not be used. It opens the database only when it
    is called, because most examinations of a queue do not need it. ``lines`` are the entries of Redis' key ``results``,
    by job id: the claim that a line names is checked, too.
    """

    def distrust(jobs: Mapping[str, bool]) -> Mapping[str, str]:
        opened, found = Database(database.address), {}
        try:
            with opened.snapshot() as connection:
                batches = TrustedBatches(opened, connection, queue)
                asked = [job_id for job_id in jobs if clean(job_id) == job_id]
                entries = _entries_of(connection, queue, asked, sorted(types))
                first = [OutboxId(*row) for row in connection.execute(_FIRST, {"queue": queue})]
                for job_id, is_removed in jobs.items():
                    told = [*entries.get(job_id, ()), *_claim_in(connection, queue, lines, job_id)]
                    # Without an event of the job, the log shows only that it has all its events.
                    why = batches.why_not(told or first, to_end=is_removed and bool(told))
                    if why is not None:
                        found[job_id] = why
        finally:
            opened.close()
        return found

    return distrust


def _claim_in(
    connection: Connection, queue: str, lines: Mapping[str, str] | None, job_id: str
) -> Iterator[OutboxId]:
    """Yield the outbox entry of the claim that a job's line in Redis' key ``results`` names, if SQL has events of this
    entry.
    """
    claim = claim_of(read_result(job_id, (lines or {}).get(job_id, "")).fence)
    asked = {"queue": queue} | ({} if claim is None else claim._asdict())
    if claim is not None and connection.execute(_IN_ENTRY, asked).first():
        yield claim


def _entries_of(
    connection: Connection, queue: str, ids: Sequence[str], types: Sequence[str] | None = None
) -> Mapping[str, list[OutboxId]]:
    """Return, by job id, the outbox entries that have events about these jobs in SQL. ``types`` limits the types of
    events; None: all types.
    """
    found: defaultdict[str, list[OutboxId]] = defaultdict(list)
    for begin in range(0, len(ids), JOBS_CHUNK):
        asked = {"queue": queue, "ids": ids[begin : begin + JOBS_CHUNK]}
        rows = (
            connection.execute(_ENTRIES, asked)
            if types is None
            else connection.execute(_ENTRIES_OF_TYPES, asked | {"types": types})
        )
        for job_id, epoch, seq in rows:
            found[job_id].append(OutboxId(epoch, seq))
    return found
