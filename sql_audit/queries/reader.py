"""Reads the numbers that metrics and web pages need again and again: watermarks, and claims by outcome.

Each reading runs a few statements on small tables and on the last minutes of ``claim_minute``. The older minutes are
summed once. They are summed again after a loss, after a new epoch, and every few hours.
"""

# ruff: noqa: S608 - statements are joined from words of the model

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from rq_core.connections.client import Client
from rq_core.model.plugins import EndedClaims, LogOverview, QueueLog
from rq_core.model.table.effects import CLAIM_ENDS
from sql_audit.mirror import source_registry
from sql_audit.mirror.redis_access import Outbox
from sql_audit.queries import scope_pauses
from sql_audit.store import migrate, orphans
from sql_audit.store.claim_minutes import MINUTE_MS
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import failure
from sql_audit.store.log_queues import mirrored
from sql_audit.store.schema.tables import OUTCOMES, one_of

HOUR_MS: Final = 60 * MINUTE_MS
SETTLED_MS: Final = 10 * MINUTE_MS
"""Age in ms from which on the counts of a minute no longer grow, unless Redis' clock is set back by a longer time. The
age is measured from the last mirrored event."""
SUM_AGAIN_S: Final = 6 * 3_600.0
"""Seconds after which all minutes are summed again, in case Redis' clock was set back by more than SETTLED_MS."""

_CURSORS: Final = text(
    "SELECT queue, batch, at_ms, events, gaps, quarantined FROM mirror_cursor ORDER BY queue"
)
_LOSSES: Final = text(
    "SELECT queue, COUNT(*) AS losses, MAX(id) AS last FROM mirror_loss GROUP BY queue"
)
_EPOCHS: Final = text("SELECT MAX(id) FROM mirror_epoch")
_ORPHANED: Final = text("SELECT queue, SUM(events) AS events FROM orphaned_range GROUP BY queue")
_PROOFS: Final = text(
    "SELECT queue, events, at_ms FROM mirror_proof WHERE id IN "
    "(SELECT MAX(id) FROM mirror_proof GROUP BY queue)"
)
_SUMS: Final = "SUM(claims) AS claims, SUM(waited_ms) AS waited_ms, SUM(ran_ms) AS ran_ms"
_MINUTES: Final = text(
    f"SELECT queue, task, outcome, minute_ms, {_SUMS} FROM claim_minute "
    f"WHERE {one_of('outcome', OUTCOMES)} AND minute_ms >= :since AND queue IN :queues GROUP BY 1, 2, 3, 4"
).bindparams(bindparam("queues", expanding=True))
_UNTIL: Final = f"(c.at_ms - {SETTLED_MS}) - (c.at_ms - {SETTLED_MS}) % {MINUTE_MS}"
_WHOLE: Final = text(
    f"SELECT m.queue, m.task, m.outcome, {_UNTIL} AS settled_until, {_SUMS} FROM claim_minute m "
    f"JOIN mirror_cursor c ON c.queue = m.queue WHERE m.minute_ms < {_UNTIL} GROUP BY 1, 2, 3, 4"
)
_FORGOTTEN: Final = text(
    "SELECT COALESCE(task, '') AS task, type AS outcome, COUNT(*) AS claims FROM job_event "
    "WHERE queue = :queue AND (epoch, seq) > (:after_epoch, :after_seq) AND (epoch, seq) < (:before_epoch, 0) "
    f"AND claim IS NOT NULL AND {one_of('type', sorted(map(str, CLAIM_ENDS)))} GROUP BY 1, 2"
)
"""A query that counts the claims which ended in one range of events that Redis has forgotten. It is executed for each
range: in a join with the view of all ranges, PostgreSQL would read all events."""

PAUSES_MS: Final = 10 * MINUTE_MS
"""Milliseconds after its beginning for which a pause of a scope is still reported."""
SCOPES_MAX: Final = 10
"""Maximum number of scopes of a queue whose last pause is read."""
_PAUSES: Final = text(
    "SELECT p.queue, COALESCE(p.cause, 'unknown') AS cause, COUNT(*) AS pauses FROM mirror_cursor c "
    "CROSS JOIN scope_pauses p WHERE p.queue = c.queue AND p.at_ms > :since GROUP BY 1, 2"
)

T = TypeVar("T")

Key = tuple[str, str, str]
"""A triple of (queue, task, outcome)."""
Sums = tuple[int, int, int]
"""A triple of (number of claims, sum of their waits in ms, sum of their runs in ms)."""


@dataclass(slots=True)
class _Counted:
    """The sums of one queue's ended claims: ``settled`` for minutes that grow no more, ``tail`` for minutes that may
    still grow.
    """

    until: int
    """Unix ms at which ``tail`` begins: earlier minutes are in ``settled`` and grow no more."""
    batch: int = -1
    """The number of the queue's last mirrored batch when ``tail`` was read."""
    settled: dict[Key, Sums] = field(default_factory=dict)
    tail: dict[Key, Sums] = field(default_factory=dict)


class MetricsReader:
    """Reads the numbers for metrics from one audit database. Several threads may use it."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare the reader; nothing is read yet. Raise AuditUrlInvalid, or AuditUnavailable if the driver is not
        installed.
        """
        self._database = Database(url)
        self._clock = clock
        self._lock = threading.Lock()
        self._checked = False
        self._history: object = None
        """The last epoch and the last losses of Redis when all minutes were last summed. If they change, all are summed
        again."""
        self._sum_at = 0.0
        self._counted: dict[str, _Counted] = {}
        """The sums of each queue's ended claims, by queue."""
        self._forgotten: dict[Key, Sums] = {}
        self._shown: dict[Key, Sums] = {}
        self._lifted: dict[Key, Sums] = {}
        """Amounts that are added to the sums, because a metrics counter must not decrease: the claims that losses and
        prunes have removed since this reader was made."""

    def mirrored(self, client: Client) -> list[str]:
        """Return the queues with this client's key prefix whose logs are still being mirrored, according to SQL.

        Raise SourceDiffers if the log belongs to another Redis, and the same errors as :meth:`look`.
        """

        def ask(connection: Connection) -> list[str]:
            source_registry.check_source(Outbox(client), self._database)
            return mirrored(connection, client.prefix)

        return self._ask(ask)

    def look(self) -> LogOverview:
        """Return the current numbers of the log.

        Raise AuditError if the database does not answer or has another schema.
        """
        return self._ask(self._read)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._lock:
            try:
                if not self._checked:
                    migrate.check_current(self._database)
                    self._checked = True
                # One snapshot for all statements: a loss that is mirrored between two statements would be counted twice
                # for ever.
                with self._database.snapshot() as connection:
                    return question(connection)
            except SQLAlchemyError as error:
                raise failure(self._database.url, error) from error

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def _read(self, connection: Connection) -> LogOverview:
        cursors = connection.execute(_CURSORS).all()
        losses = {row.queue: row for row in connection.execute(_LOSSES)}
        orphaned = {row.queue: int(row.events) for row in connection.execute(_ORPHANED)}
        proofs = {row.queue: row for row in connection.execute(_PROOFS)}
        epoch = connection.execute(_EPOCHS).scalar()
        now_ms = round(time.time() * 1000)
        pauses = defaultdict[str, dict[str, int]](dict)
        for row in connection.execute(_PAUSES, {"since": now_ms - PAUSES_MS}):
            pauses[row.queue][row.cause] = int(row.pauses)
        queues = []
        for row in cursors:
            proof, lost = proofs.get(row.queue), losses.get(row.queue)
            queues.append(
                # SQLite stores any text in a column of numbers: int raises an error before the collector adds it up.
                QueueLog(
                    queue=row.queue,
                    events=int(row.events),
                    last_at_ms=None if row.at_ms is None else int(row.at_ms),
                    gaps=int(row.gaps),
                    quarantined=int(row.quarantined),
                    losses=lost.losses if lost else 0,
                    orphaned_events=orphaned.get(row.queue, 0),
                    proven_events=int(proof.events) if proof else None,
                    proven_at_ms=int(proof.at_ms) if proof else None,
                    pauses=pauses.get(row.queue, {}),
                    last_pauses=_last_pauses(connection, row.queue, now_ms)
                    if row.queue in pauses
                    else {},
                )
            )
        history = (epoch, tuple(sorted((queue, lost.last) for queue, lost in losses.items())))
        sums = self._sums(connection, history, cursors)
        claims = (EndedClaims(*key, *sums[key]) for key in sorted(sums))
        return LogOverview(tuple(queues), tuple(claims))

    def _sums(
        self, connection: Connection, history: object, cursors: Sequence[Row[Any]]
    ) -> dict[Key, Sums]:
        """Return the sums of all ended claims. Only the minutes of queues with new batches are read."""
        if history != self._history or self._clock() >= self._sum_at:
            # A new epoch may change earlier minutes, if Redis' clock is behind, and a loss counts minutes again.
            self._sum_again(connection, cursors)
            self._history, self._sum_at = history, self._clock() + SUM_AGAIN_S
        grown = [
            row
            for row in cursors
            if self._counted.setdefault(row.queue, _Counted(0)).batch != row.batch
        ]
        if grown:
            self._read_tails(connection, grown)
        parts = [each for queue in self._counted.values() for each in (queue.settled, queue.tail)]
        return self._never_falling(
            _added(self._forgotten, *(part.items() for part in parts)),
        )

    def _sum_again(self, connection: Connection, cursors: Sequence[Row[Any]]) -> None:
        self._counted = {row.queue: _Counted(_until(row.at_ms)) for row in cursors}
        for row in connection.execute(_WHOLE):
            counted = self._counted.setdefault(row.queue, _Counted(0))
            key, sums = _sums_of(row)
            counted.until, counted.settled[key] = row.settled_until, sums
        self._forgotten = {}
        for queue in self._counted:
            for each in orphans.ranges(connection, queue):
                (after_epoch, after_seq), (before_epoch, _) = each.after, each.before
                asked = {
                    "after_epoch": after_epoch,
                    "after_seq": after_seq,
                    "before_epoch": before_epoch,
                }
                found = connection.execute(_FORGOTTEN, asked | {"queue": queue})
                claims = (
                    ((queue, row.task, row.outcome), (int(row.claims), 0, 0)) for row in found
                )
                self._forgotten = _added(self._forgotten, claims)

    def _read_tails(self, connection: Connection, grown: Sequence[Row[Any]]) -> None:
        """Read the minutes that may have grown, of the queues ``grown``. Add minutes that can no longer grow to
        ``settled``.
        """
        by_hour = defaultdict[int, list[str]](list)
        for row in grown:
            counted = self._counted[row.queue]
            counted.batch, counted.tail = row.batch, {}
            # A queue that ended long ago does not make the others' minutes since then be read.
            by_hour[counted.until // HOUR_MS].append(row.queue)
        until = {row.queue: _until(row.at_ms) for row in grown}
        for names in by_hour.values():
            since = min(self._counted[name].until for name in names)
            for row in connection.execute(_MINUTES, {"since": since, "queues": names}):
                counted = self._counted[row.queue]
                if row.minute_ms < counted.until:
                    continue
                settles = row.minute_ms < until[row.queue]
                _add_to(counted.settled if settles else counted.tail, *_sums_of(row))
        for queue, at in until.items():
            self._counted[queue].until = max(self._counted[queue].until, at)

    def _never_falling(self, sums: Mapping[Key, Sums]) -> dict[Key, Sums]:
        """Return the sums plus all amounts by which the sums have fallen so far: a metrics counter must not decrease.

        Losses and prunes lower the sums.
        """
        for key, shown in self._shown.items():
            now = sums.get(key, (0, 0, 0))
            fell = [max(0, before - each) for before, each in zip(shown, now, strict=True)]
            if any(fell):
                self._lifted = _added(self._lifted, [(key, (fell[0], fell[1], fell[2]))])
        self._shown = dict(sums)
        return _added(sums, self._lifted.items())


def _last_pauses(connection: Connection, queue: str, now_ms: int) -> dict[str, dict[str, Any]]:
    found = scope_pauses.recent_pauses(connection, queue, now_ms, SCOPES_MAX)
    return {scope: asdict(pause) for scope, pause in found.items()}


def _sums_of(row: Any) -> tuple[Key, Sums]:
    # PostgreSQL's sums of bigints are decimals.
    return (row.queue, row.task, row.outcome), (
        int(row.claims),
        int(row.waited_ms),
        int(row.ran_ms),
    )


def _until(at_ms: int | None) -> int:
    """Return the minute (Unix ms) from which on counts may still grow. ``at_ms`` is the time of the last mirrored
    event.
    """
    settled = (at_ms or 0) - SETTLED_MS
    return max(0, settled - settled % MINUTE_MS)


def _add_to(total: dict[Key, Sums], key: Key, sums: Sums) -> None:
    had = total.get(key, (0, 0, 0))
    total[key] = (had[0] + sums[0], had[1] + sums[1], had[2] + sums[2])


def _added(sums: Mapping[Key, Sums], *more: Iterable[tuple[Key, Sums]]) -> dict[Key, Sums]:
    """Return ``sums`` with the amounts in ``more`` added, by key."""
    total = dict(sums)
    for each in more:
        for key, some in each:
            _add_to(total, key, some)
    return total


def open_metrics_reader(url: str) -> MetricsReader:
    """Return a MetricsReader for the audit database at ``url``. rq_core finds this function by an entry point. Nothing
    is read yet.

    Raise AuditUrlInvalid, or AuditUnavailable if the driver is not installed.
    """
    return MetricsReader(url)
