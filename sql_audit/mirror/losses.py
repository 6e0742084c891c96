"""Changes SQL after Redis forgot events that SQL has.

:mod:`sql_audit.mirror.forks` finds the last entry that the histories of SQL and of Redis share. SQL's events after this
entry are *orphaned*. They stay in ``job_event``, but do not belong to the history that Redis continues.

Each epoch continues from the last entry that Redis had when the epoch began, so the epochs form a tree. The surviving
events lie on the path from the last epoch to the root. The view ``orphaned_range`` finds the others. If Redis is
restored to an older branch, the orphaned events of that branch survive again.

Everything here happens in the mirror's transaction, with the cursor locked.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import logging
from typing import Any, Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from rq_core.model.table.machine import State
from rq_core.model.table.reasons import RESTATED_BY
from sql_audit.mirror.forks import Fork
from sql_audit.mirror.projection.rebuild import refold
from sql_audit.store import claim_minutes
from sql_audit.store.connection.database import Database
from sql_audit.store.orphans import ranges
from sql_audit.store.schema.tables import GONE, LOST, mirror_loss

logger = logging.getLogger("rq_core.audit")

_LIVE: Final = ", ".join(repr(str(state)) for state in State)

_COUNT: Final = text(
    "SELECT COUNT(*) FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq)"
)
_JOBS_CONCERNED: Final = text(
    "SELECT DISTINCT job_id FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq) AND job_id IS NOT NULL"
)
_BASELINE: Final = text(
    "SELECT MAX(epoch) FROM mirror_epoch WHERE queue = :queue AND kind = 'started' AND "
    f"epoch <= :epoch AND reason IN ({', '.join(repr(str(reason)) for reason in RESTATED_BY)})"
)
_EARLIEST: Final = text(
    "SELECT MIN(at_ms) FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq)"
)
_INSERT_LOSS: Final = mirror_loss.insert()

# These statements are executed in this order. They change jobs that have no event since the epoch.
_CONCERNED: Final = f"queue = :queue AND state IN ({_LIVE}) AND last_epoch < :epoch"
_END_CLAIMS: Final = text(
    f"UPDATE job_attempt SET outcome = '{LOST}', ended_at_ms = :at_ms WHERE queue = :queue AND "
    "outcome IS NULL AND (job_id, fence) IN "
    f"(SELECT job_id, fence FROM job WHERE {_CONCERNED} AND fence IS NOT NULL)"
)
_END_JOBS: Final = text(
    "UPDATE job SET reason = state, state = :state, fence = NULL, worker = NULL, due_ms = NULL "
    f"WHERE {_CONCERNED}"
)


def apply_fork(
    connection: Connection, database: Database, queue: str, fork: Fork, upto: OutboxId, batch: int
) -> None:
    """Undo what forgotten events changed in the rows of jobs and claims, after Redis has lost data. Record the loss in
    SQL, and log it.

    ``fork`` has the last entry that Redis and SQL share; ``upto`` is the last entry in SQL. Nothing changes if Redis
    forgot no event, and has no entry that SQL must skip.
    """
    at_ms, passed = fork.beginning.at_ms, len(fork.passed)
    row = {
        "queue": queue, "batch": batch, "kind": "orphaned", "epoch": fork.beginning.id.epoch, "at_ms": at_ms,
        "after_epoch": None, "after_seq": None, "upto_epoch": upto.epoch, "upto_seq": upto.seq,
        "events": 0, "jobs": 0, "passed": passed,
    }  # fmt: skip
    if fork.survivor is None:
        # No job has an event for this: the beginning of the epoch concerns all jobs.
        count = end_jobs(connection, queue, LOST, fork.beginning.id.epoch, at_ms)
        connection.execute(_INSERT_LOSS, row | {"kind": "forgotten", "jobs": count})
        logger.error("queue %s: Redis remembers nothing: %d live jobs are lost", queue, count)
        return
    survivor = min(fork.survivor, upto)
    if survivor == upto and not passed:
        return
    before = ranges(connection, queue)
    bounds = _bounds(queue, survivor, upto)
    events: int = connection.execute(_COUNT, bounds).scalar_one()
    concerned = connection.execute(_JOBS_CONCERNED, bounds).scalars().all()
    row |= {"after_epoch": survivor.epoch, "after_seq": survivor.seq}
    connection.execute(_INSERT_LOSS, row | {"events": events, "jobs": len(concerned)})
    after = ranges(connection, queue)
    # Events that were orphaned and are valid again change jobs, too.
    revived = [each.after for each in before if each not in after and each.after < survivor]
    if revived:
        bounds = _bounds(queue, min(revived), upto)
        concerned = connection.execute(_JOBS_CONCERNED, bounds).scalars().all()
    refold(connection, database, queue, concerned, after)
    earliest = connection.execute(_EARLIEST, bounds).scalar_one()
    if earliest is not None:
        claim_minutes.count_again(connection, queue, earliest)
    logger.error(
        "queue %s: Redis forgot what came after %s: %s of %s orphaned",
        queue, fork.survivor, counted(events, "event"), counted(len(concerned), "job is", "jobs are"),
    )  # fmt: skip
    if passed:
        logger.error(
            "queue %s: %s to quarantine, since SQL had passed their numbers",
            queue, counted(passed, "entry goes", "entries go"),
        )  # fmt: skip


def complete_baseline(
    connection: Connection, queue: str, upto: OutboxId, at_ms: int, batch: int
) -> None:
    """Set the state GONE for each live job in SQL that Redis no longer has.

    A complete baseline is a series of events that names every live job in Redis. ``upto`` is its last entry.
    """
    began = connection.execute(_BASELINE, {"queue": queue, "epoch": upto.epoch}).scalar_one()
    if began is None:
        return  # SQL does not have its epoch's beginning.
    count = end_jobs(connection, queue, GONE, began, at_ms)
    connection.execute(
        _INSERT_LOSS,
        {
            "queue": queue, "batch": batch, "kind": "restated", "epoch": began, "at_ms": at_ms,
            "after_epoch": None, "after_seq": None, "upto_epoch": upto.epoch,
            "upto_seq": upto.seq, "events": 0, "jobs": count, "passed": 0,
        },
    )  # fmt: skip


def end_jobs(connection: Connection, queue: str, state: str, epoch: int, at_ms: int) -> int:
    """Set ``state`` for every live job without an event in ``epoch`` or a later epoch, and end the claims of these
    jobs. Return the number of jobs.
    """
    values = {"queue": queue, "state": state, "epoch": epoch, "at_ms": at_ms}
    if connection.execute(_END_CLAIMS, values).rowcount:
        claim_minutes.count_again(connection, queue, at_ms)
    return connection.execute(_END_JOBS, values).rowcount


def _bounds(queue: str, after: OutboxId, upto: OutboxId) -> dict[str, Any]:
    return {
        "queue": queue, "epoch": after.epoch, "seq": after.seq,
        "to_epoch": upto.epoch, "to_seq": upto.seq,
    }  # fmt: skip
