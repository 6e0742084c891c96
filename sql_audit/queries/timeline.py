"""Questions about a moment and about a wait: who ran, who waited, and behind whom.

Both are answered from ``job_attempt`` and ``job``, which know when every claim began and ended and
under which scopes: nothing is replayed.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, text

from rq_core.model.scopes import is_rate, scopes_of
from sql_audit.mirror import refold
from sql_audit.queries.history import PrunedTo, pruned_to, unknown
from sql_audit.store.tables import GONE, LOST, SPAN, SPANS_MS
from sql_audit.times import readable

NAMED_MAX: Final = 5
"""How many of the jobs in front are named."""
BEFORE_MAX: Final = 1_000
"""Claims before a wait in which it is looked what had spent a rate already."""


def _of_each_span(select: str, since: str, until: str) -> str:
    """``select``, for claims that were not over at ``since`` and had begun before ``until``: those that are
    in force, and those that ended, by index, class by class (:data:`sql_audit.store.tables.SPAN`)."""
    parts = [f"{select} AND a.ended_at_ms IS NULL"]
    for span, bound in zip(range(len(SPANS_MS) + 1), (*SPANS_MS, None), strict=True):
        part = f"{select} AND {SPAN} = {span} AND a.ended_at_ms > {since}"
        parts.append(part if bound is None else f"{part} AND a.ended_at_ms <= {until} + {bound}")
    return " UNION ALL ".join(parts)


_RUNNING: Final = text(
    _of_each_span(
        "SELECT job_id, task, worker, claim, fence, claimed_at_ms, ended_at_ms, outcome, scopes "
        "FROM job_attempt a WHERE queue = :queue AND claimed_at_ms <= :at",
        ":at",
        ":at",
    )
    + " ORDER BY claimed_at_ms, job_id"
)
_THEN_CLAIMED: Final = _of_each_span(
    "SELECT job_id, task, ready_at_ms FROM job_attempt a "
    "WHERE queue = :queue AND ready_at_ms <= :at AND claimed_at_ms > :at",
    ":at",
    ":at",
)
_LOST_AT: Final = (
    "(SELECT MIN(l.at_ms) FROM mirror_loss l WHERE l.queue = j.queue AND l.epoch > j.last_epoch AND "
    f"(j.state = '{GONE}' AND l.kind = 'restated' OR j.state = '{LOST}' AND (l.kind = 'forgotten' OR "
    "l.kind = 'orphaned' AND (j.last_epoch, j.last_seq) > (l.after_epoch, l.after_seq))))"
)
"""When Redis forgot a job ``j`` that is lost or gone, by its own clock."""

_WAITING: Final = text(
    "SELECT w.job_id, w.task, w.ready_at_ms, j.lane, j.priority "
    f"FROM ({_THEN_CLAIMED}) w JOIN job j ON j.job_id = w.job_id AND j.queue = :queue "
    "UNION ALL SELECT job_id, task, ready_at_ms, lane, priority FROM job "
    "WHERE queue = :queue AND ready_at_ms <= :at AND state = 'ready' AND finished_at_ms IS NULL "
    "UNION ALL SELECT job_id, task, ready_at_ms, lane, priority FROM job "
    "WHERE queue = :queue AND ready_at_ms <= :at AND state = 'cancelled' AND finished_at_ms > :at "
    "AND (claimed_at_ms IS NULL OR claimed_at_ms < ready_at_ms) "
    "UNION ALL SELECT job_id, task, ready_at_ms, lane, priority FROM job j "
    f"WHERE queue = :queue AND ready_at_ms <= :at AND state IN ('{LOST}', '{GONE}') "
    f"AND finished_at_ms IS NULL AND reason = 'ready' AND {_LOST_AT} > :at "
    "ORDER BY 3, 1"
)
_JOB: Final = text(
    "SELECT queue, state, reason, lane, ready_at_ms, claimed_at_ms, finished_at_ms, due_ms, "
    f"{_LOST_AT} AS lost_at_ms FROM job j "
    "WHERE job_id = :job_id AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) ORDER BY queue"
)
_WAITS: Final = text(
    "SELECT claim, worker, ready_at_ms, claimed_at_ms, scopes FROM job_attempt "
    "WHERE job_id = :job_id AND queue = :queue AND claimed_at_ms IS NOT NULL ORDER BY claimed_at_ms"
)
_MEANWHILE: Final = text(
    _of_each_span(
        "SELECT job_id, task, worker, claimed_at_ms, ended_at_ms, scopes FROM job_attempt a "
        "WHERE queue = :queue AND job_id <> :job_id AND claimed_at_ms < :until",
        ":since",
        ":until",
    )
    + " ORDER BY claimed_at_ms, job_id"
)
_BEFORE: Final = text(
    _of_each_span(
        "SELECT claimed_at_ms, scopes FROM job_attempt a "
        "WHERE queue = :queue AND claimed_at_ms < :since AND claimed_at_ms >= :earliest",
        ":earliest",
        ":since",
    )
    + " ORDER BY claimed_at_ms DESC LIMIT :most"
)
_FIRST: Final = text(
    "SELECT at_ms FROM job_event WHERE queue = :queue ORDER BY epoch, seq, ordinal LIMIT 1"
)
_NEXT_LOSS: Final = text(
    "SELECT MIN(at_ms) FROM mirror_loss WHERE queue = :queue AND at_ms > :at AND jobs > 0"
)
_FORGOTTEN_AT: Final = text(
    "SELECT MIN(at_ms) FROM mirror_loss WHERE queue = :queue AND epoch > :epoch AND epoch <= :restored"
)
_LAST: Final = text("SELECT at_ms FROM mirror_cursor WHERE queue = :queue")


@dataclass(frozen=True, slots=True)
class Running:
    """A claim that was in force."""

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
    """A job that was ready, and not claimed yet."""

    job_id: str
    task: str | None
    ready_at_ms: int
    lane: str | None
    """The lane that it waited in, or one that it was put into later."""
    priority: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """A queue at one moment."""

    at_ms: int
    running: list[Running]
    waiting: list[Waiting]
    pruned: PrunedTo | None = None
    """If others may have run or waited that were pruned since."""
    caveats: tuple[str, ...] = ()
    """Why there may have been more, in words, if it was not pruned."""

    @property
    def scopes(self) -> dict[str, tuple[int | None, list[str]]]:
        """Scope → the cap in force when it was claimed last, and the jobs that held it."""
        found: dict[str, tuple[int | None, list[str]]] = {}
        for claim in self.running:
            for scope, *limit in claim.scopes:
                if len(limit) == 1:
                    holders = found[scope][1] if scope in found else []
                    holders.append(claim.job_id)
                    found[scope] = limit[0], holders
        return found


def at(engine: Engine, queue: str, at_ms: int) -> Moment:
    """What was running and waiting in a queue at a time (Unix ms)."""
    of = {"queue": queue, "at": at_ms}
    with engine.connect() as connection:
        running = [
            Running(
                row.job_id, row.task, row.worker, row.claim, row.claimed_at_ms, row.ended_at_ms,
                row.outcome, json.loads(row.scopes or "[]"),
            )
            for row in connection.execute(_RUNNING, of)
        ]  # fmt: skip
        waiting = [Waiting(*row) for row in connection.execute(_WAITING, of)]
        pruned = _pruned_after(connection, queue, at_ms)
        caveats = tuple(_caveats(connection, queue, at_ms, pruned))
    return Moment(at_ms, running, waiting, pruned, caveats)


def _caveats(
    connection: Connection, queue: str, at_ms: int, pruned: PrunedTo | None
) -> Iterator[str]:
    """What to say of a moment before the first event of a queue, after the last, or before jobs were put back."""
    first = connection.execute(_FIRST, {"queue": queue}).scalar_one_or_none()
    last = connection.execute(_LAST, {"queue": queue}).scalar_one_or_none()
    if first is None or last is None:
        yield f"nothing of queue {queue} is mirrored yet"
        return
    if at_ms < first and pruned is None:
        yield f"the log of queue {queue} begins at {readable(first)}: what was before is not known"
    if at_ms > last:
        yield f"the log of queue {queue} ends at {readable(last)}: this is how it stood then"
    forgot = connection.execute(_NEXT_LOSS, {"queue": queue, "at": at_ms}).scalar_one()
    if forgot is not None:
        yield (
            f"Redis forgot jobs of queue {queue} at {readable(forgot)}: of those that were put back or enqueued anew "
            "since, audit history tells whether they waited"
        )


def _pruned_after(connection: Connection, queue: str, at_ms: int) -> PrunedTo | None:
    """The prune that may have removed what ended after a moment, if there was one."""
    return next((cut for cut in pruned_to(connection, queue) if cut.cut_at_ms >= at_ms), None)


@dataclass(frozen=True, slots=True)
class InFront:
    """One scope that a job waited for, and who held it meanwhile."""

    scope: str
    limit: str
    full_ms: int
    """How long it was full during the wait; of a rate, spent."""
    holders: int
    """Claims of others under this scope that were in force at some time of the wait, or of a rate:
    that began in it."""
    named: list[str] = field(default_factory=list)
    """The jobs of the last of them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of a job, from when it was ready until it was claimed."""

    since_ms: int
    until_ms: int
    claim: int | None
    """The claim that ended it; None: it goes on."""
    worker: str | None
    others_claimed: int
    """Claims of other jobs that began meanwhile."""
    in_front: list[InFront]
    held_back_by: str | None
    """The scope that was full, or spent, for most of it; None: none was."""
    ended: str | None = None
    """Without a claim, how it ended all the same: ``cancelled``, ``lost`` or ``gone``, the last two with Redis'
    memory of the job."""

    @property
    def waited_ms(self) -> int:
        return self.until_ms - self.since_ms


@dataclass(frozen=True, slots=True)
class Why:
    """Every wait of a job."""

    job_id: str
    queue: str
    state: str
    lane: str | None
    due_ms: int | None
    waits: list[Wait]
    pruned: PrunedTo | None = None
    """If others may have been in front that were pruned since."""


def why(engine: Engine, job_id: str, queue: str | None = None) -> list[Why]:
    """What a job waited for, in each queue that knows it. Raises HistoryUnknown if none does."""
    found = []
    with engine.connect() as connection:
        rows = connection.execute(_JOB, {"job_id": job_id, "queue": queue}).all()
        for row in rows:
            of = {"job_id": job_id, "queue": row.queue}
            waits = [
                _wait(connection, of, w.ready_at_ms, w.claimed_at_ms, w.claim, w.worker,
                      json.loads(w.scopes or "[]"))
                for w in connection.execute(_WAITS, of).all()
                if w.ready_at_ms is not None
            ]  # fmt: skip
            for since_ms, until_ms, ended, lane in _without_claim(connection, job_id, row):
                scopes = [[scope] for scope in (*scopes_of(lane or ""), "queue")]
                wait = _wait(connection, of, since_ms, until_ms, None, None, scopes)
                waits.append(replace(wait, ended=ended))
            waits.sort(key=lambda wait: wait.since_ms)
            pruned = _pruned_after(connection, row.queue, waits[0].since_ms) if waits else None
            found.append(Why(job_id, row.queue, row.state, row.lane, row.due_ms, waits, pruned))
        if not found:
            raise unknown(connection, job_id, queue)
    return found


def _without_claim(
    connection: Connection, job_id: str, job: Row[Any]
) -> Iterator[tuple[int, int, str | None, str | None]]:
    """The waits of a job that no claim ended: since and until when, what ended it (None: it goes on), and the lane."""
    events = refold.events_of(connection, job.queue, [job_id])
    for place, event in enumerate(events):
        _, epoch, _, _, event_type, *_ = event
        if event_type != "restored":
            continue
        # Its row begins anew. What it was before, Redis had forgotten.
        before = next(iter(refold.folded(job.queue, [job_id], events[:place], ())[0]), None)
        if before is None:
            continue  # It was pruned.
        of = {"queue": job.queue, "epoch": before.last_epoch, "restored": epoch}
        lost_at = connection.execute(_FORGOTTEN_AT, of).scalar_one()
        if before.state == "ready" and before.ready_at_ms is not None and lost_at is not None:
            yield before.ready_at_ms, lost_at, LOST, before.lane
    if job.ready_at_ms is None:
        return
    claimed = job.claimed_at_ms is not None and job.claimed_at_ms >= job.ready_at_ms
    if job.state == "ready":
        last = connection.execute(_LAST, {"queue": job.queue}).scalar_one()
        yield job.ready_at_ms, last, None, job.lane
    elif job.state in (LOST, GONE) and job.reason == "ready" and job.lost_at_ms is not None:
        yield job.ready_at_ms, job.lost_at_ms, job.state, job.lane
    elif job.state == "cancelled" and job.finished_at_ms is not None and not claimed:
        yield job.ready_at_ms, job.finished_at_ms, job.state, job.lane


def _wait(
    connection: Connection,
    of: dict[str, Any],
    since_ms: int,
    until_ms: int,
    claim: int | None,
    worker: str | None,
    scopes: Sequence[Sequence[Any]],
) -> Wait:
    until_ms = max(since_ms, until_ms)
    others = [
        (row.job_id, row.task, row.claimed_at_ms, row.ended_at_ms, json.loads(row.scopes or "[]"))
        for row in connection.execute(_MEANWHILE, {**of, "since": since_ms, "until": until_ms})
    ]
    in_front = []
    for scope, *limit in scopes:
        held = [
            (job, begin, end, _limit_in(theirs, scope))
            for job, task, begin, end, theirs in others
            if _holds(scope, task, theirs)
        ]
        # A job that still waits carries no limits; the claims under its scopes do.
        carried = [found for *_, found in held if found]
        in_force = list(limit) or (carried[-1] if carried else None)
        if not in_force or in_force == [None]:
            continue
        if len(in_force) == 3:
            held = [h for h in held if h[1] >= since_ms]
            words = f"{in_force[0]} per {in_force[1] / 1000:g} s"
            before = _claims_before(connection, of, since_ms, in_force)
            spenders = [at_ms for at_ms, theirs in before if _limit_in(theirs, scope) is not None]
            full = _spent([*spenders, *(h[1] for h in held)], in_force, since_ms, until_ms)
        else:
            words = str(in_force[0])
            full = _full([(b, e) for _, b, e, _ in held], int(in_force[0]), since_ms, until_ms)
        named = [job for job, *_ in held[-NAMED_MAX:]]
        in_front.append(InFront(scope, words, full, len(held), named))
    others_claimed = sum(begin >= since_ms for _, _, begin, _, _ in others)
    longest = max(in_front, key=lambda each: each.full_ms, default=None)
    held_back_by = longest.scope if longest is not None and longest.full_ms else None
    return Wait(since_ms, until_ms, claim, worker, others_claimed, in_front, held_back_by)


def _claims_before(
    connection: Connection, of: dict[str, Any], since_ms: int, rate: Sequence[int]
) -> list[tuple[int, list[list[Any]]]]:
    """When the last claims before a wait began that a rate may still count, and under which scopes, oldest first."""
    most, window_ms, burst = rate
    reaches_ms = window_ms + (burst * window_ms // most if most else 0)
    bound = {**of, "since": since_ms, "earliest": since_ms - reaches_ms, "most": BEFORE_MAX}
    found = connection.execute(_BEFORE, bound).all()
    return [(row.claimed_at_ms, json.loads(row.scopes or "[]")) for row in reversed(found)]


def _limit_in(scopes: Iterable[Sequence[Any]], wanted: str) -> list[Any] | None:
    return next((list(limit) for scope, *limit in scopes if scope == wanted), None)


def _holds(scope: str, task: str | None, theirs: Iterable[Sequence[Any]]) -> bool:
    if scope == "queue" or (scope == f"task={task}" and not is_rate(scope)):
        return True
    return any(other == scope for other, *_ in theirs)


def _spent(claims: Sequence[int], rate: Sequence[int], since_ms: int, until_ms: int) -> int:
    """For how many ms of a time a rate was spent, by the claims that spent it (in order, with some from before).

    As scopes.lua reckons it: the generic cell rate algorithm."""
    most, window_ms, burst = rate
    if not most:
        return until_ms - since_ms
    interval_us = math.ceil(window_ms * 1000 / most)
    spent, arrival_us = 0, 0
    for at_ms, following in pairwise((*claims, until_ms)):
        arrival_us = max(arrival_us, at_ms * 1000) + interval_us
        resumes_ms = math.ceil((arrival_us - (burst - 1) * interval_us) / 1000)
        spent += max(0, min(following, resumes_ms, until_ms) - max(at_ms, since_ms))
    return spent


def _full(held: Sequence[tuple[int, int | None]], cap: int, since_ms: int, until_ms: int) -> int:
    """For how many ms of a time at least ``cap`` held."""
    changes = []
    for begin, end in held:
        changes.append((max(begin, since_ms), 1))
        changes.append((min(until_ms if end is None else end, until_ms), -1))
    changes.sort()
    full, holders, before = 0, 0, since_ms
    for at_ms, change in changes:
        if holders >= cap:
            full += at_ms - before
        before = at_ms
        holders += change
    if holders >= cap:
        full += until_ms - before
    return full
