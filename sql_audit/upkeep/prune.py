"""Removes old finished jobs from the log, for ``rq-core audit prune``. The rest of the log can still be verified.

A job is removed as a whole: its events, its claims and its row. Redis must no longer have the job. The time for which
jobs with its outcome are kept must be over. Events of the queue itself stay. The *cut* is the end of a batch. Up to the
cut, the log still has every live job with its scopes.

``audit verify`` begins after the cut, with the chain's head that the prune recorded. It proves everything after the
cut, and that the events before the cut are those that the prune left.

A prune first verifies the log itself. It does not rely on recorded proofs, because a verifier could have recorded a
false proof. The database refuses deletions unless a row of ``mirror_prune`` records that a prune has begun, with its
cut. The hash of a batch without entries covers each such row. So a later head that is kept outside the database proves
what the prune left.

Each transaction removes at most JOBS_AT_ONCE jobs, or, on PostgreSQL, the jobs with events in a whole month. If a prune
was interrupted, the next prune continues it.

    cuts = plan(database, Rules(older_than_ms=90 * 86_400_000), now_ms=now)     # upkeep.plan
    prune_logs(database, cuts, by="ada", now_ms=now)
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, text

from sql_audit.errors import NotProven
from sql_audit.mirror.cursor import Cursor
from sql_audit.proof.log import kept_rows
from sql_audit.proof.record import record_proofs
from sql_audit.proof.result import UNDER_WAY
from sql_audit.proof.verify import verify
from sql_audit.store.chain import Link, found_digest, found_text, rows_digest
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import CURSOR, INSERT_BATCH
from sql_audit.store.partitions import Month, partitions
from sql_audit.store.schema.tables import mirror_cursor, mirror_prune
from sql_audit.store.schema.triggers import refuse_truncate
from sql_audit.upkeep.plan import Cut

JOBS_AT_ONCE: Final = 1_000
"""Maximum number of jobs that one transaction removes, except when it drops the partition of a month."""
BATCHES_AT_ONCE: Final = 5_000
PAUSE_S: Final = 0.3
"""Maximum seconds between two transactions of a prune, so that the mirror can write in between."""
Progress = Callable[[str, int, int], None]
"""The type of a function that is called with a queue, the number of verified events and the number of all events."""
_LOCK: Final = text("SELECT queue FROM mirror_cursor WHERE queue = :queue FOR UPDATE")


@dataclass(slots=True)
class PruneResult:
    """The numbers of jobs and events that a prune removed from one queue, and the entry up to which it removed them."""

    queue: str
    cut: str
    cut_at_ms: int
    jobs: int = 0
    events: int = 0
    kept_events: int = 0
    """Number of events that the prune left in the log up to the entry ``cut``, this entry included."""
    head: str = ""
    """The newest hash of the queue's chain of batches, which covers the record of the prune."""


def refuse_unproven(
    database: Database, cuts: Sequence[Cut], *, accept_unknown: bool, on_progress: Progress
) -> None:
    """Verify the logs before they are cut, and record the result.

    Raise NotProven if a log has violations. Without ``accept_unknown``, also raise NotProven if something in a log
    cannot be proved. An interrupted prune does not count as unknown.
    """
    if not cuts:
        return
    result = verify(database, *(cut.queue for cut in cuts), on_progress=on_progress)
    for name, found in result.queues.items():
        if found.violations:
            raise NotProven(queue=name, why="is violated", hint="")
        if not accept_unknown and any(note.says != UNDER_WAY for note in found.notes):
            hint = "; --accept-gaps prunes it nevertheless"
            raise NotProven(queue=name, why="cannot be proved completely", hint=hint)
    record_proofs(database, result)


def prune_logs(
    database: Database,
    cuts: Sequence[Cut],
    *,
    by: str,
    now_ms: int,
    accept_unknown: bool = False,
    on_step: Callable[[str], None] = lambda _step: None,
    on_progress: Callable[[str, int], None] = lambda _queue, _jobs: None,
    on_proof: Progress = lambda _queue, _done, _of: None,
) -> list[PruneResult]:
    """Verify the logs of the queues in ``cuts``, then remove the jobs up to these cuts. Return the numbers per queue.

    With ``accept_unknown``, logs without violations that cannot be proved completely (gaps, quarantine) are pruned,
    too. ``on_step`` is called after each commit with the name of the transaction. ``on_progress`` is called with the
    queue and the number of its jobs that are removed so far. ``on_proof`` is called during the verification (see
    Progress).

    Raise NotProven, and the errors of SQL. After an error, committed removals stay, and the next prune continues.
    """
    refuse_unproven(database, cuts, accept_unknown=accept_unknown, on_progress=on_proof)
    return remove(database, cuts, by=by, now_ms=now_ms, on_step=on_step, on_progress=on_progress)


def remove(
    database: Database,
    cuts: Sequence[Cut],
    *,
    by: str,
    now_ms: int,
    on_step: Callable[[str], None] = lambda _step: None,
    on_progress: Callable[[str, int], None] = lambda _queue, _jobs: None,
) -> list[PruneResult]:
    """Remove the jobs up to the cuts, without verifying the logs first. Return the numbers per queue."""
    done = {cut.queue: PruneResult(cut.queue, str(cut.at), cut.at_ms) for cut in cuts}
    run = _Run(database, cuts, done, by, now_ms, on_step, on_progress)
    for cut in cuts:
        run.begin(cut)
    if database.dialect == "postgresql":
        run.drop_months()
    for cut in cuts:
        run.remove_jobs(cut)
        run.remove_batches(cut)
        run.end(cut)
    return list(done.values())


@dataclass(slots=True)
class _Run:
    database: Database
    cuts: Sequence[Cut]
    done: dict[str, PruneResult]
    by: str
    now_ms: int
    on_step: Callable[[str], None]
    on_progress: Callable[[str, int], None]

    def _row(self, cut: Cut, kind: str) -> dict[str, Any]:
        return {
            "queue": cut.queue, "kind": kind, "at_ms": self.now_ms, "actor": self.by,
            "rules": cut.rules, "epoch": cut.at.epoch, "seq": cut.at.seq, "cut_at_ms": cut.at_ms,
            "cut_batch": cut.batch, "head": cut.head, "through_entries": cut.through_entries,
            "through_events": cut.through_events,
        }  # fmt: skip

    def _lock(self, connection: Connection, queue: str) -> None:
        """Lock the queue's cursor, so that no mirror writes to the queue. (On SQLite, the transaction locks the whole
        database.)
        """
        if self.database.dialect == "postgresql":
            connection.execute(_LOCK, {"queue": queue})

    def _record(self, connection: Connection, cut: Cut, row: dict[str, Any]) -> str:
        """Insert a row of ``mirror_prune``, and a batch without entries whose hash covers the row. Return this hash,
        the chain's new head.

        The mirror's position in the queue must be locked.
        """
        cursor = Cursor(*connection.execute(CURSOR, {"queue": cut.queue}).one())
        number, at = cursor.batch + 1, cursor.position
        assert at is not None
        connection.execute(mirror_prune.insert(), row | {"batch": number})
        found = found_digest(connection, cut.queue, number)
        link = Link(
            cursor.head, cut.queue, number, at, at, 0, 0, 0, 0, cursor.anchor or "", rows_digest(""), found
        )  # fmt: skip
        connection.execute(INSERT_BATCH, link.row)
        moved = mirror_cursor.update().where(mirror_cursor.c.queue == cut.queue)
        connection.execute(moved.values(batch=number, head=link.head))
        return link.head

    def begin(self, cut: Cut) -> None:
        """Record that the prune of a queue has begun. From then on, the database's triggers allow deletions from the
        queue's log.
        """
        with self.database.writing(wait=True) as connection:
            assert connection is not None
            self._lock(connection, cut.queue)
            self._record(connection, cut, self._row(cut, "begun"))
            connection.commit()
        self.on_step("begun")

    def end(self, cut: Cut) -> None:
        """Record that the prune has ended, and which events it left up to the cut. From then on, the triggers refuse
        deletions again.
        """
        told = self.done[cut.queue]
        with self.database.writing(wait=True) as connection:
            assert connection is not None
            self._lock(connection, cut.queue)
            digest = hashlib.sha256()
            for rows in kept_rows(self.database, cut.queue, cut.at, connection):
                digest.update(copy_text(rows).encode())
                told.kept_events += len(rows)
            for line in found_text(connection, cut.queue, range(cut.batch + 1)):
                digest.update(line.encode())
            row = self._row(cut, "done") | {
                "jobs": told.jobs, "events": told.events, "kept_events": told.kept_events,
                "kept_digest": digest.hexdigest(),
            }  # fmt: skip
            told.head = self._record(connection, cut, row)
            connection.commit()
        self.on_step("done")

    def remove_jobs(self, cut: Cut) -> None:
        """Remove the jobs up to the cut, at most JOBS_AT_ONCE in each transaction."""
        condition, values = cut.removable
        page = text(
            f"SELECT j.job_id FROM job j WHERE {condition} AND j.job_id > :after "
            f"ORDER BY j.job_id LIMIT {JOBS_AT_ONCE}"
        )
        after = ""
        while True:
            began = time.monotonic()
            with self.database.writing(wait=True) as connection:
                assert connection is not None
                self._lock(connection, cut.queue)
                ids = list(connection.execute(page, {**values, "after": after}).scalars())
                if not ids:
                    return
                self._remove(connection, cut, ids)
                connection.commit()
            after = ids[-1]
            self.on_step("removed")
            self.on_progress(cut.queue, self.done[cut.queue].jobs)
            time.sleep(min(time.monotonic() - began, PAUSE_S))

    def _remove(self, connection: Connection, cut: Cut, ids: list[str]) -> None:
        if self.database.dialect == "sqlite":
            these, bound = "IN (SELECT value FROM json_each(:ids))", json.dumps(ids)
        else:
            these, bound = "= ANY(:ids)", ids  # type: ignore[assignment]
        of_jobs = {"queue": cut.queue, "ids": bound}
        upto = {"epoch": cut.at.epoch, "seq": cut.at.seq}
        events = connection.execute(
            text(
                f"DELETE FROM job_event WHERE job_id {these} AND queue = :queue "
                "AND (epoch, seq) <= (:epoch, :seq)"
            ),
            {**of_jobs, **upto},
        ).rowcount
        for table in ("job_attempt", "job"):
            statement = f"DELETE FROM {table} WHERE job_id {these} AND queue = :queue"
            connection.execute(text(statement), of_jobs)
        told = self.done[cut.queue]
        told.events += events
        told.jobs += len(ids)

    def remove_batches(self, cut: Cut) -> None:
        """Remove the rows of batches and of quarantined entries in the pruned part of the log."""
        first = text("SELECT MIN(batch) FROM mirror_batch WHERE queue = :queue")
        with self.database.readers.connect() as connection:
            number = connection.execute(first, {"queue": cut.queue}).scalar_one()
        while number is not None and number <= cut.batch:
            number += BATCHES_AT_ONCE
            with self.database.writing(wait=True) as connection:
                assert connection is not None
                upto = min(number - 1, cut.batch)
                connection.execute(
                    text("DELETE FROM mirror_batch WHERE queue = :queue AND batch <= :upto"),
                    {"queue": cut.queue, "upto": upto},
                )
                connection.commit()
            self.on_step("batches")
        with self.database.writing(wait=True) as connection:
            assert connection is not None
            connection.execute(
                text("DELETE FROM quarantine WHERE queue = :queue AND batch <= :batch"),
                {"queue": cut.queue, "batch": cut.batch},
            )
            connection.commit()
        self.on_step("quarantine")

    # PostgreSQL: whole months.

    def drop_months(self) -> None:
        """Drop the partitions of old months. Events that must stay are copied to a new partition for the same month.

        A month is old if it ended longer ago than the shortest of the times for which jobs are kept. A partition stays
        if none of the jobs to remove has an event in it.
        """
        oldest = min((max(cut.ended_before.values()) for cut in self.cuts), default=0)
        with self.database.readers.connect() as connection:
            months = [month for month in partitions(connection) if month.end_ms <= oldest]
        for month in months:
            self._drop_month(month)
            self.on_step("month")

    def _drop_month(self, month: Month) -> None:
        with self.database.writing(wait=True) as connection:
            assert connection is not None

            def run(statement: str, values: dict[str, Any] | None = None) -> CursorResult[Any]:
                return connection.execute(text(statement), values or {})

            run(
                "CREATE TEMPORARY TABLE prune_job (queue TEXT, job_id TEXT, epoch BIGINT, "
                "seq BIGINT, PRIMARY KEY (queue, job_id)) ON COMMIT DROP"
            )
            for cut in sorted(self.cuts, key=lambda cut: cut.queue):
                self._lock(connection, cut.queue)
                condition, values = cut.removable
                run(
                    "INSERT INTO prune_job SELECT j.queue, j.job_id, "
                    "CAST(:epoch AS BIGINT), CAST(:seq AS BIGINT) FROM job j "
                    f"WHERE {condition} AND EXISTS (SELECT 1 FROM {month.table} e "
                    "WHERE e.job_id = j.job_id AND e.queue = j.queue)",
                    values,
                )
            run("ANALYZE prune_job")
            counted = run("SELECT queue, COUNT(*) AS jobs FROM prune_job GROUP BY queue").all()
            if not counted:
                return
            mine = "p.queue = e.queue AND p.job_id = e.job_id"
            gone = (
                f"SELECT 1 FROM prune_job p WHERE {mine} AND (e.epoch, e.seq) <= (p.epoch, p.seq)"
            )
            # No event may be added to the partition between the copy and the drop.
            run(f"LOCK TABLE {month.table} IN SHARE MODE")
            removed = run(
                f"SELECT e.queue, COUNT(*) AS events FROM {month.table} e "
                f"WHERE EXISTS ({gone}) GROUP BY e.queue"
            ).all()
            kept = f"{month.table}_kept"
            run(f"CREATE TABLE {kept} (LIKE {month.table} INCLUDING CONSTRAINTS)")
            left = run(
                f"INSERT INTO {kept} SELECT * FROM {month.table} e WHERE NOT EXISTS ({gone})"
            ).rowcount
            elsewhere = run(
                "WITH gone AS (DELETE FROM job_event e USING prune_job p "
                f"WHERE {mine} AND (e.epoch, e.seq) <= (p.epoch, p.seq) "
                "AND (e.at_ms < :begin OR e.at_ms >= :end) RETURNING e.queue) "
                "SELECT queue, COUNT(*) AS events FROM gone GROUP BY queue",
                {"begin": month.begin_ms, "end": month.end_ms},
            ).all()
            for table in ("job_attempt", "job"):
                run(f"DELETE FROM {table} e USING prune_job p WHERE {mine}")
            run(f"ALTER TABLE job_event DETACH PARTITION {month.table}")
            run(f"DROP TABLE {month.table}")
            if left:
                run(f"ALTER TABLE {kept} RENAME TO {month.table}")
                run(
                    f"ALTER TABLE job_event ATTACH PARTITION {month.table} "
                    f"FOR VALUES {month.bounds}"
                )
                run(refuse_truncate(month.table))
            else:
                run(f"DROP TABLE {kept}")
            connection.commit()
        for row in [*removed, *elsewhere]:
            self.done[row.queue].events += row.events
        for row in counted:
            self.done[row.queue].jobs += row.jobs
            self.on_progress(row.queue, self.done[row.queue].jobs)
