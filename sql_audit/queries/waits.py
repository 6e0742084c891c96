"""Reads the waits of a job: how long each wait was, for which scopes the job waited (what caps and rates count, such as
``tenant=acme``), and which claims held these scopes.

``job_attempt`` and ``job`` have the begin, the end and the scopes of each claim. The job's events are read only for the
times in which it could not be claimed, and for waits that did not end in a claim.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, text

from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.costs import cost_of
from rq_core.model.limits.scopes import is_rate, scopes_of
from sql_audit.errors import HistoryUnknown
from sql_audit.mirror.projection import rebuild
from sql_audit.queries.history import PrunedTo, history, per_window, pruned_after, unknown
from sql_audit.queries.occupancy import (
    COUNTED_MAX,
    cost_under,
    holds,
    limit_in,
    ms_full,
    ms_spent,
    read_scopes,
)
from sql_audit.queries.pauses import JobPause, pauses_of
from sql_audit.queries.scope_pauses import ScopePause, ms_paused, pauses_during
from sql_audit.store.orphans import LOST_AT
from sql_audit.store.schema.duration_classes import of_each_span
from sql_audit.store.schema.tables import GONE, LOST

NAMED_MAX: Final = 5
"""Maximum number of jobs that an answer names as the holders of a scope during a wait."""
BEFORE_MAX: Final = 1_000
"""Maximum number of claims before a wait that are read to find out whether a rate was exhausted when the wait began."""

_JOB: Final = text(
    "SELECT queue, state, reason, lane, cost, ready_at_ms, claimed_at_ms, finished_at_ms, due_ms, "
    f"{LOST_AT} AS lost_at_ms FROM job j "
    "WHERE job_id = :job_id AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) ORDER BY queue"
)
_WAITS: Final = text(
    "SELECT claim, worker, ready_at_ms, claimed_at_ms, scopes FROM job_attempt "
    "WHERE job_id = :job_id AND queue = :queue AND claimed_at_ms IS NOT NULL ORDER BY claimed_at_ms"
)
_MEANWHILE: Final = text(
    of_each_span(
        "SELECT job_id, task, claimed_at_ms, ended_at_ms, scopes FROM job_attempt a "
        "WHERE queue = :queue AND job_id <> :job_id AND claimed_at_ms < :until",
        ":since",
        ":until",
        order="DESC",
    )
)
_BEFORE: Final = text(
    of_each_span(
        "SELECT claimed_at_ms, scopes FROM job_attempt a "
        "WHERE queue = :queue AND claimed_at_ms < :since AND claimed_at_ms >= :earliest",
        ":earliest",
        ":since",
        order="DESC",
    )
)
_FORGOTTEN_AT: Final = text(
    "SELECT MIN(at_ms) FROM mirror_loss WHERE queue = :queue AND epoch > :epoch AND epoch <= :restored"
)
_LAST: Final = text("SELECT at_ms FROM mirror_cursor WHERE queue = :queue")


@dataclass(frozen=True, slots=True)
class InFront:
    """A scope for which a job waited, such as ``tenant=acme``, and the claims of other jobs that held it during the
    wait.
    """

    scope: str
    limit: str
    full_ms: int
    """Milliseconds of the wait in which the scope's cap was full, its rate was exhausted, or it was paused."""
    holders: int
    """Number of other jobs' claims that the scope's cap counted during the wait. For a rate, the number of claims that
    began during the wait."""
    named: list[str] = field(default_factory=list)
    """Ids of the other jobs, for the last NAMED_MAX of the claims that ``holders`` counts."""


@dataclass(frozen=True, slots=True)
class JobWait:
    """One wait of a job, from the time at which the job was ready until a worker claimed it."""

    since_ms: int
    until_ms: int
    claim: int | None
    """The number of the claim that ended the wait; None if no claim did."""
    worker: str | None
    others_claimed: int
    """Number of claims of other jobs that began during the wait."""
    in_front: list[InFront]
    held_back_by: str | None
    """The scope, such as ``tenant=acme``, whose full cap, exhausted rate or pause delayed the job for the longest time.
    None if no cap was full, no rate was exhausted and no scope was paused."""
    judged_from_ms: int | None = None
    """Set only if there were too many other claims to read all of them: Unix ms from which on all were read. The counts
    are then minimums, and ``full_ms`` covers only the time from then on."""
    pauses: list[ScopePause] = field(default_factory=list)
    """The pauses of the job's scopes that were in force during the wait, the last first."""
    ended: str | None = None
    """How the wait ended without a claim: ``cancelled``; ``lost`` or ``gone`` if Redis lost the job. None if a claim
    ended the wait, or if it has not ended."""

    @property
    def waited_ms(self) -> int:
        return self.until_ms - self.since_ms


@dataclass(frozen=True, slots=True)
class Why:
    """All waits of a job in one queue, and all times in which no worker could claim it."""

    job_id: str
    queue: str
    state: str
    lane: str | None
    due_ms: int | None
    waits: list[JobWait]
    pruned: PrunedTo | None = None
    """The last prune of the log, if it may have removed claims of other jobs that the job waited for; otherwise
    None."""
    pauses: list[JobPause] = field(default_factory=list)
    """The times in which the job was scheduled or parked, or a lost worker held the job's claim."""


def why(engine: Engine, job_id: str, queue: str | None = None) -> list[Why]:
    """Return the waits and pauses of a job, one item for each queue that has the job. Raise HistoryUnknown if no queue
    has the job.
    """
    found = []
    with engine.connect() as connection:
        rows = connection.execute(_JOB, {"job_id": job_id, "queue": queue}).all()
        for row in rows:
            of = {"job_id": job_id, "queue": row.queue}
            waits = [
                _wait(connection, of, w.ready_at_ms, w.claimed_at_ms, w.claim, w.worker,
                      read_scopes(w.scopes), row.cost)
                for w in connection.execute(_WAITS, of).all()
                if w.ready_at_ms is not None
            ]  # fmt: skip
            for since_ms, until_ms, ended, lane in _without_claim(connection, job_id, row):
                scopes = [[scope] for scope in (*scopes_of(lane or ""), "queue")]
                wait = _wait(connection, of, since_ms, until_ms, None, None, scopes, row.cost)
                waits.append(replace(wait, ended=ended))
            waits.sort(key=lambda wait: wait.since_ms)
            pruned = pruned_after(connection, row.queue, waits[0].since_ms) if waits else None
            found.append(Why(job_id, row.queue, row.state, row.lane, row.due_ms, waits, pruned))
        if not found:
            raise unknown(connection, job_id, queue)
        last = {each.queue: _last_ms(connection, each.queue) for each in found}
    return [replace(each, pauses=_pauses(engine, each, last[each.queue])) for each in found]


def _last_ms(connection: Connection, queue: str) -> int:
    return int(connection.execute(_LAST, {"queue": queue}).scalar_one() or 0)


def _pauses(engine: Engine, why: Why, last_ms: int) -> list[JobPause]:
    try:
        return [*pauses_of(history(engine, why.job_id, why.queue), last_ms)]
    except HistoryUnknown:
        return []  # The job's events were pruned.


def _without_claim(
    connection: Connection, job_id: str, job: Row[Any]
) -> Iterator[tuple[int, int, str | None, str | None]]:
    """Yield the waits of a job that did not end in a claim.

    Each wait is a tuple: its begin and its end (Unix ms), the state that ended it (None: not ended), and the job's
    lane.
    """
    events = rebuild.events_of(connection, job.queue, [job_id])
    for place, event in enumerate(events):
        _, epoch, _, _, event_type, *_ = event
        if event_type != "restored":
            continue
        # A restored job's row begins again. Its state before the loss comes from its earlier events.
        before = next(iter(rebuild.folded(job.queue, [job_id], events[:place], ())[0]), None)
        if before is None:
            continue  # The earlier events were pruned.
        of = {"queue": job.queue, "epoch": before.last_epoch, "restored": epoch}
        lost_at = connection.execute(_FORGOTTEN_AT, of).scalar_one()
        if before.state == "ready" and before.ready_at_ms is not None and lost_at is not None:
            yield before.ready_at_ms, lost_at, LOST, before.lane
    if job.state == "scheduled" and job.due_ms is not None:
        last = _last_ms(connection, job.queue)
        if job.due_ms < last:
            # The job is due; the next claim will promote it.
            yield job.due_ms, last, None, job.lane
    if job.ready_at_ms is None:
        return
    claimed = job.claimed_at_ms is not None and job.claimed_at_ms >= job.ready_at_ms
    if job.state == "ready":
        yield job.ready_at_ms, _last_ms(connection, job.queue), None, job.lane
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
    costs: str | None,
) -> JobWait:
    until_ms = max(since_ms, until_ms)
    others, judged_from_ms = _others(connection, of, since_ms, until_ms)
    begun_ms, since_ms = since_ms, since_ms if judged_from_ms is None else judged_from_ms
    in_front, pauses = [], list[ScopePause]()
    for scope, *limit in scopes:
        paused = (
            pauses_during(connection, of["queue"], scope, since_ms, until_ms + (claim is None))
            if is_rate(scope)
            else []
        )
        pauses += paused
        held = [
            (job, begin, end, limit_in(theirs, scope))
            for job, task, begin, end, theirs in others
            if holds(scope, task, theirs)
        ]
        # The scopes of a job that still waits have no limits; the claims under these scopes have them.
        carried = [found for *_, found in held if found]
        in_force = list(limit) or (carried[-1] if carried else None)
        if not in_force or in_force == [None]:
            continue
        if len(in_force) >= 3:
            held = [h for h in held if h[1] >= since_ms]
            cost = cost_of(costs, scope)
            words = per_window(scope, in_force)
            before = _claims_before(connection, of, since_ms, in_force)
            taken = [(at_ms, limit_in(theirs, scope)) for at_ms, theirs in before]
            taken += [(begin, limit) for _, begin, _, limit in held]
            spent = [(at_ms, cost_under(limit)) for at_ms, limit in taken if limit is not None]
            full_ms = max(
                0 if is_breaker(scope) else ms_spent(spent, in_force, since_ms, until_ms, cost),
                ms_paused(paused, since_ms, until_ms),
            )
        else:
            words = str(in_force[0])
            full_ms = ms_full([(b, e) for _, b, e, _ in held], int(in_force[0]), since_ms, until_ms)
        named = [job for job, *_ in held[-NAMED_MAX:]]
        in_front.append(InFront(scope, words, full_ms, len(held), named))
    others_claimed = sum(begin >= begun_ms for _, _, begin, _, _ in others)
    longest = max(in_front, key=lambda each: each.full_ms, default=None)
    held_back_by = longest.scope if longest is not None and longest.full_ms else None
    if held_back_by is None and claim is None and pauses:
        # The log ends when the pause begins, so the pause has no length yet.
        held_back_by = pauses[0].scope
    return JobWait(
        begun_ms,
        until_ms,
        claim,
        worker,
        others_claimed,
        in_front,
        held_back_by,
        judged_from_ms,
        pauses,
    )


_Other = tuple[str, str | None, int, int | None, list[list[Any]]]
"""A claim of another job: the job's id and task, and the claim's begin and end (Unix ms) and scopes (what caps
count)."""


def _others(
    connection: Connection, of: dict[str, Any], since_ms: int, until_ms: int
) -> tuple[list[_Other], int | None]:
    """Return the claims of other jobs that were in force during a wait, ordered by their begin.

    If a class of durations has more than COUNTED_MAX claims, also return the time (Unix ms) from which on the list is
    complete; otherwise None.
    """
    bound = {**of, "since": since_ms, "until": until_ms, "most": COUNTED_MAX + 1}
    rows = connection.execute(_MEANWHILE, bound).all()
    ends: dict[int, list[int]] = {}
    for row in rows:
        # A claim in force has no end. Claims in force are read by their begin, the latest first.
        end = row.claimed_at_ms if row.ended_at_ms is None else row.ended_at_ms
        ends.setdefault(row.part, []).append(end)
    cut = [min(each) for each in ends.values() if len(each) > COUNTED_MAX]
    judged_from_ms = min(until_ms, max(since_ms, *cut)) if cut else None
    read = lru_cache(maxsize=1_000)(read_scopes)
    others = [(r.job_id, r.task, r.claimed_at_ms, r.ended_at_ms, read(r.scopes)) for r in rows]
    others.sort(key=lambda other: (other[2], other[0]))
    return others, judged_from_ms


def _claims_before(
    connection: Connection, of: dict[str, Any], since_ms: int, rate: Sequence[int]
) -> list[tuple[int, list[list[Any]]]]:
    """Return the begin (Unix ms) and the scopes of the last claims before a wait, oldest first.

    These are the claims that a rate may still count during the wait.
    """
    most, window_ms, burst = rate[:3]
    reaches_ms = window_ms + (burst * window_ms // most if most else 0)
    bound = {**of, "since": since_ms, "earliest": since_ms - reaches_ms, "most": BEFORE_MAX}
    found = sorted(connection.execute(_BEFORE, bound).all(), key=lambda row: row.claimed_at_ms)
    return [(row.claimed_at_ms, read_scopes(row.scopes)) for row in found[-BEFORE_MAX:]]
