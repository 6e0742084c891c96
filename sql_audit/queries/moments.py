"""Reads the state of a queue at one moment: the claims that were in force, and the jobs that waited.

``job_attempt`` and ``job`` have the begin, the end and the scopes of each claim, so no event is replayed.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, bindparam, text

from sql_audit.queries.history import PrunedTo, pruned_after
from sql_audit.queries.occupancy import COUNTED_MAX, read_scopes
from sql_audit.store.orphans import LOST_AT
from sql_audit.store.schema.duration_classes import SPAN, of_each_span
from sql_audit.store.schema.tables import GONE, LOST
from sql_audit.times import readable

LISTED_MAX: Final = 100
"""Maximum number of waiting jobs that are listed."""


_RUNNING: Final = text(
    of_each_span(
        "SELECT job_id, task, worker, claim, claimed_at_ms, ended_at_ms, outcome, scopes "
        "FROM job_attempt a WHERE queue = :queue AND claimed_at_ms <= :at",
        ":at",
        ":at",
        order="ASC",
    )
)
_THEN_CLAIMED: Final = of_each_span(
    "SELECT job_id, task, ready_at_ms FROM job_attempt a "
    "WHERE queue = :queue AND ready_at_ms <= :at AND claimed_at_ms > :at",
    ":at",
    ":at",
    order="ASC",
    span=SPAN,
)
_READY: Final = (
    "SELECT job_id, task, ready_at_ms FROM job j WHERE queue = :queue AND ready_at_ms <= :at"
)
_WAITING: Final = text(
    f"SELECT job_id, task, ready_at_ms FROM ({_THEN_CLAIMED}) AS claimed UNION ALL "
    + " UNION ALL ".join(
        f"SELECT * FROM ({_READY} AND {condition} ORDER BY ready_at_ms LIMIT :most) AS {name}"
        for name, condition in (
            ("ready", "state = 'ready' AND finished_at_ms IS NULL"),
            (
                "cancelled",
                (
                    "state = 'cancelled' AND finished_at_ms > :at "
                    "AND (claimed_at_ms IS NULL OR claimed_at_ms < ready_at_ms)"
                ),
            ),
            (
                "lost",
                f"state IN ('{LOST}', '{GONE}') AND finished_at_ms IS NULL AND reason = 'ready' AND {LOST_AT} > :at",
            ),
        )
    )
    + " LIMIT :most"
)
_SCHEDULED: Final = text(
    "SELECT COUNT(*) FROM (SELECT job_id, queue, enqueued_at_ms FROM job WHERE queue = :queue AND state = 'scheduled'"
    " AND finished_at_ms IS NULL AND enqueued_at_ms <= :at LIMIT :most) AS now WHERE NOT EXISTS (SELECT 1 FROM"
    " job_attempt a WHERE a.job_id = now.job_id AND a.queue = now.queue"
    " AND (a.ended_at_ms > :at OR a.ended_at_ms IS NULL))"
)
"""A query for the number of jobs that were scheduled at the moment and still are."""
_PLACES: Final = text(
    "SELECT job_id, lane, priority FROM job WHERE queue = :queue AND job_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_FIRST: Final = text(
    "SELECT at_ms FROM job_event WHERE queue = :queue ORDER BY epoch, seq, ordinal LIMIT 1"
)
_NEXT_LOSS: Final = text(
    "SELECT MIN(at_ms) FROM mirror_loss WHERE queue = :queue AND at_ms > :at AND jobs > 0"
)
_LAST: Final = text("SELECT at_ms FROM mirror_cursor WHERE queue = :queue")


@dataclass(frozen=True, slots=True)
class RunningClaim:
    """A claim that was in force at the moment that the caller asks about."""

    job_id: str
    task: str | None
    worker: str | None
    claim: int | None
    claimed_at_ms: int
    ended_at_ms: int | None
    outcome: str | None
    scopes: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that was ready, and not claimed, at the moment that the caller asks about."""

    job_id: str
    task: str | None
    ready_at_ms: int
    lane: str | None
    """The lane (priority and scopes) in which the job waited, or a lane into which it was put later."""
    priority: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a queue at one moment."""

    at_ms: int
    running: list[RunningClaim]
    waiting: list[Waiting]
    """The LISTED_MAX jobs that had waited longest."""
    waiting_count: int = 0
    """The number of jobs that waited. If ``more_waited`` is true, at least this number waited."""
    more_waited: bool = False
    scheduled_count: int = 0
    """The number of jobs that were scheduled at the moment and still are. COUNTED_MAX means at least that number."""
    more_ran: bool = False
    """True if more claims were in force than ``running`` has."""
    pruned: PrunedTo | None = None
    """The last prune of the log, if it may have removed jobs that ran or waited at the moment; otherwise None."""
    caveats: tuple[str, ...] = ()
    """Sentences with other reasons why the answer may be incomplete."""

    @property
    def scopes(self) -> dict[str, tuple[int | None, list[str]]]:
        """The cap and the holders of each scope that a claim held. A scope is what a cap counts, such as
        ``tenant=acme``.

        The cap is the one in force at the last claim (None: no cap). The holders are the ids of the jobs.
        """
        found: dict[str, tuple[int | None, list[str]]] = {}
        for claim in self.running:
            for scope, *limit in claim.scopes:
                if len(limit) == 1:
                    holders = found[scope][1] if scope in found else []
                    holders.append(claim.job_id)
                    found[scope] = limit[0], holders
        return found


def at(engine: Engine, queue: str, at_ms: int) -> Moment:
    """Return the claims in force and the waiting jobs of a queue at a moment (Unix ms)."""
    of = {"queue": queue, "at": at_ms, "most": COUNTED_MAX + 1}
    with engine.connect() as connection:
        ran = connection.execute(_RUNNING, of).all()
        running = [
            RunningClaim(
                row.job_id, row.task, row.worker, row.claim, row.claimed_at_ms, row.ended_at_ms,
                row.outcome, read_scopes(row.scopes),
            )
            for row in sorted(ran, key=lambda row: (row.claimed_at_ms, row.job_id))[:COUNTED_MAX]
        ]  # fmt: skip
        waited = connection.execute(_WAITING, of).all()
        waiting = _placed(connection, queue, waited)
        scheduled = connection.execute(_SCHEDULED, of).scalar_one()
        pruned = pruned_after(connection, queue, at_ms)
        caveats = tuple(_caveats(connection, queue, at_ms, pruned))
    count, most = len(waited), COUNTED_MAX
    return Moment(
        at_ms,
        running,
        waiting,
        min(count, most),
        count > most,
        min(scheduled, most),
        len(ran) > most,
        pruned,
        caveats,
    )


def _placed(connection: Connection, queue: str, waited: Sequence[Row[Any]]) -> list[Waiting]:
    """Return the jobs that had waited longest, at most LISTED_MAX, with their lanes and priorities."""
    first = sorted(waited, key=lambda row: (row.ready_at_ms, row.job_id))[:LISTED_MAX]
    of = {"queue": queue, "ids": [row.job_id for row in first]}
    places = {row.job_id: row for row in connection.execute(_PLACES, of)} if first else {}
    return [
        Waiting(
            row.job_id,
            row.task,
            row.ready_at_ms,
            places[row.job_id].lane,
            places[row.job_id].priority,
        )
        for row in first
        if row.job_id in places
    ]


def _caveats(
    connection: Connection, queue: str, at_ms: int, pruned: PrunedTo | None
) -> Iterator[str]:
    """Yield a warning for each reason why the answer may be incomplete.

    The moment may be before the queue's first event, after its last event, or before a loss of jobs.
    """
    first = connection.execute(_FIRST, {"queue": queue}).scalar_one_or_none()
    last = connection.execute(_LAST, {"queue": queue}).scalar_one_or_none()
    if first is None or last is None:
        yield f"nothing of queue {queue} is mirrored yet"
        return
    if at_ms < first and pruned is None:
        yield f"the log of queue {queue} begins at {readable(first)}: what was before is not known"
    if at_ms > last:
        yield f"the log of queue {queue} ends at {readable(last)}: this is the state at that time"
    forgot = connection.execute(_NEXT_LOSS, {"queue": queue, "at": at_ms}).scalar_one()
    if forgot is not None:
        yield (
            f"Redis forgot jobs of queue {queue} at {readable(forgot)}: of those that were put back or enqueued again "
            "since, audit history shows whether they waited"
        )
