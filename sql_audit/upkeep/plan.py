"""Plans a prune: finds the entry up to which each queue's log can be cut.

Rules say how long finished jobs are kept.

    plan(database, Rules(older_than_ms=90 * 86_400_000), now_ms=now)
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.table.machine import State
from sql_audit.proof.log import LAST_PRUNE
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import JOB_STATES

OUTCOMES: Final = {
    "dead" if state == "pruned" else state: state
    for state in JOB_STATES
    if state not in {str(live) for live in State}
}
"""By outcome of jobs: their state in SQL. An operator may set for each outcome how long its jobs are kept in the log.
The outcome ``dead`` has the state ``pruned``: a dead job that Redis still has is never removed, since it may be
requeued."""

_CURSORS: Final = text(
    "SELECT queue, epoch, seq, batch FROM mirror_cursor "
    "WHERE batch > 0 AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) ORDER BY queue"
)
_BATCH: Final = text(
    "SELECT batch, last_epoch, last_seq, head FROM mirror_batch "
    "WHERE queue = :queue AND batch = :batch"
)
_TIME_AT: Final = text(
    "SELECT at_ms FROM job_event WHERE queue = :queue AND (epoch, seq) <= (:epoch, :seq) "
    "ORDER BY epoch DESC, seq DESC, ordinal DESC LIMIT 1"
)
_COUNTED: Final = text(
    "SELECT COALESCE(SUM(entries), 0) AS entries, COALESCE(SUM(events), 0) AS events "
    "FROM mirror_batch WHERE queue = :queue AND batch > :low AND batch <= :high"
)
_LAST_WITH_ENTRIES: Final = text(
    "SELECT batch FROM mirror_batch WHERE queue = :queue AND entries > 0 ORDER BY batch DESC LIMIT 1"
)
_ENDED: Final = "COALESCE(j.finished_at_ms, j.since_ms, 0)"


@dataclass(frozen=True, slots=True)
class Rules:
    """The times for which finished jobs are kept, in ms. ``keep`` has the times by outcome (see OUTCOMES). For any
    other outcome, the time is ``older_than_ms``.
    """

    older_than_ms: int
    keep: Mapping[str, int] = field(default_factory=dict)

    def of(self, outcome: str) -> int:
        return self.keep.get(outcome, self.older_than_ms)

    @property
    def shortest_ms(self) -> int:
        return min(self.of(outcome) for outcome in OUTCOMES)

    def __str__(self) -> str:
        """Return the rules as JSON, for ``mirror_prune.rules``."""
        return json.dumps({"older_than_ms": self.older_than_ms, **self.keep}, sort_keys=True)


class Cut(NamedTuple):
    """The entry up to which a prune removes jobs from a queue's log, and which jobs it removes."""

    queue: str
    at: OutboxId
    at_ms: int
    batch: int
    head: str
    through_entries: int
    through_events: int
    ended_before: dict[str, int]
    """By state: a job is removed only if it ended before this time (Unix ms)."""
    rules: str

    @property
    def removable(self) -> tuple[str, dict[str, Any]]:
        """An SQL condition for the rows of ``job`` (named ``j``) that the prune removes, and the values to bind."""
        cases = " ".join(
            f"WHEN '{state}' THEN CAST(:before_{n} AS BIGINT)"
            for n, state in enumerate(self.ended_before)
        )
        condition = (
            "j.queue = :queue AND (j.last_epoch, j.last_seq) <= (:epoch, :seq) "
            f"AND {_ENDED} < CASE j.state {cases} END"
        )
        before = {f"before_{n}": ms for n, ms in enumerate(self.ended_before.values())}
        return condition, {
            "queue": self.queue, "epoch": self.at.epoch, "seq": self.at.seq, **before,
        }  # fmt: skip


def plan(database: Database, rules: Rules, *, now_ms: int, queue: str | None = None) -> list[Cut]:
    """Return, for each queue, the entry up to which its log can be pruned. Queues with nothing to prune are left out.

    A queue has something to prune in three cases: a batch after the last pruned entry is old enough, jobs before that
    entry are old enough now, or the queue's last prune was interrupted.
    """
    with database.readers.connect() as connection:
        cursors = connection.execute(_CURSORS, {"queue": queue}).all()
        cuts = [_cut(connection, cursor, rules, now_ms) for cursor in cursors]
    return [cut for cut in cuts if cut is not None]


def _cut(connection: Connection, cursor: Any, rules: Rules, now_ms: int) -> Cut | None:
    name = cursor.queue
    last = connection.execute(LAST_PRUNE, {"queue": name}).one_or_none()
    low = 0 if last is None else last.cut_batch
    with_entries = connection.execute(_LAST_WITH_ENTRIES, {"queue": name}).scalar_one_or_none() or 0
    ended_before = {state: now_ms - rules.of(outcome) for outcome, state in OUTCOMES.items()}
    found = _last_batch_before(
        # The last batch with entries stays: the next batch begins after its last entry.
        connection, name, low, with_entries - 1, now_ms - rules.shortest_ms
    )  # fmt: skip
    if found is None:
        if last is None:
            return None
        # Jobs that the last prune kept before its cut may be old enough now, or the last prune was interrupted.
        same = Cut(
            name, OutboxId(last.epoch, last.seq), last.cut_at_ms, last.cut_batch, last.head,
            last.through_entries, last.through_events, ended_before, str(rules),
        )  # fmt: skip
        return same if last.kind != "done" or count(connection, same) else None
    batch, at_ms = found
    counted = connection.execute(_COUNTED, {"queue": name, "low": low, "high": batch.batch}).one()
    before = (0, 0) if last is None else (last.through_entries, last.through_events)
    return Cut(
        name, OutboxId(batch.last_epoch, batch.last_seq), at_ms, batch.batch, batch.head,
        before[0] + int(counted.entries), before[1] + int(counted.events), ended_before, str(rules),
    )  # fmt: skip


def _last_batch_before(
    connection: Connection, queue: str, low: int, high: int, before_ms: int
) -> tuple[Any, int] | None:
    """Return the last batch whose last event is before ``before_ms``, and the time of that event (Unix ms).

    Only the batches after ``low``, up to ``high``, are searched. Return None if no batch is old enough.
    """
    best = None
    while low < high:
        middle = (low + high + 1) // 2
        batch = connection.execute(_BATCH, {"queue": queue, "batch": middle}).one_or_none()
        if batch is None:
            return best
        at = {"queue": queue, "epoch": batch.last_epoch, "seq": batch.last_seq}
        at_ms = connection.execute(_TIME_AT, at).scalar_one_or_none()
        if at_ms is not None and at_ms < before_ms:
            low, best = middle, (batch, at_ms)
        else:
            high = middle - 1
    return best


def count(connection: Connection, cut: Cut) -> int:
    """Return the number of jobs that a prune up to this cut would remove."""
    condition, values = cut.removable
    statement = text(f"SELECT COUNT(*) FROM job j WHERE {condition}")
    return int(connection.execute(statement, values).scalar_one())
