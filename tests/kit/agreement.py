"""Asserts that three things agree: Redis, the log, and the rows about jobs in SQL (the projection).

Tests use it after each loss of Redis and each repair.
"""

from __future__ import annotations

from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.doctor import examine
from sql_audit.mirror.projection import rebuild
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.findings import Note
from sql_audit.proof.result import LogVerdict, QueueResult
from sql_audit.proof.verify import verify
from sql_audit.queries import history as queries
from sql_audit.store import orphans
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import ATTEMPT_COLUMNS, EVENT_COLUMNS, JOB_COLUMNS
from tests.kit import auditlog
from tests.kit.fleet import QUEUE


def drain(client: Client, database: Database, queue: str = QUEUE) -> None:
    auditlog.drain(Mirror(Outbox(client), database, queue, limits=BatchLimits(events=60)))


def rows(
    database: Database, table: str, columns: tuple[str, ...], queue: str = QUEUE
) -> set[tuple[object, ...]]:
    statement = text(f"SELECT {', '.join(columns)} FROM {table} WHERE queue = :queue")
    with database.readers.connect() as connection:
        found = connection.execute(statement, {"queue": queue})
        return {tuple(row) for row in found}


def fold_anew(
    database: Database, queue: str = QUEUE
) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """Return the rows of ``job`` and ``job_attempt``, computed again from the events that Redis did not lose."""
    events = auditlog.events(database, queue)
    told = [tuple(event[name] for name in EVENT_COLUMNS) for event in events]
    ids = list(dict.fromkeys(event["job_id"] for event in events if event["job_id"]))
    with database.readers.connect() as connection:
        orphaned = orphans.ranges(connection, queue)
        ends = orphans.ends(connection, queue, orphaned)
    jobs, attempts = rebuild.folded(queue, ids, told, orphaned, ends)
    return set(map(tuple, jobs)), set(map(tuple, attempts))


def assert_agree(
    client: Client,
    database: Database,
    verdict: LogVerdict,
    *,
    pruned: bool = False,
    lost: bool = False,
    queue: str = QUEUE,
) -> QueueResult:
    """Let the mirror catch up, and assert that Redis, the log and the projection agree.

    ``pruned`` means that old batches are gone, so that only verify can check the chain. ``lost`` means that Redis has
    lost events. The log may then lack the beginning of a durable job, and the job's box cannot be compared with the
    log.
    """
    drain(client, database, queue)

    assert client.run(client.calls.reads.counts(queue)).backlog == 0
    violations, notes = compare(client, database, queue)
    assert violations == []
    assert [note for note in notes if not (lost and box_is_unknown(note))] == []
    assert [
        finding.says for finding in examine(client.run(client.calls.reads.snapshot(queue)))
    ] == []
    jobs, attempts = fold_anew(database, queue)
    assert rows(database, "job", JOB_COLUMNS, queue) == jobs
    assert rows(database, "job_attempt", ATTEMPT_COLUMNS, queue) == attempts
    if not pruned:
        auditlog.assert_chain_holds(database, queue)
    result = verify(database).queues[queue]
    if verdict is not LogVerdict.VIOLATED:
        assert result.violations == []
    assert (result.verdict, result.notes if verdict is LogVerdict.HOLDS else []) == (verdict, [])
    for job_id, *_ in jobs:
        history = queries.history(database.readers, str(job_id), queue)
        assert all(event.number and event.type for event in history)
    return result


def box_is_unknown(note: Note) -> bool:
    """Return whether the note says that a durable job's entries could not be compared with the log."""
    return "durable job" in note.says


def states(database: Database) -> dict[str, str]:
    found = auditlog.rows(database, "SELECT job_id, state FROM job")
    return {row["job_id"]: row["state"] for row in found}
