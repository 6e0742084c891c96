"""Makes causes: sentences about current problems of a queue or a server. ``rq-core top`` shows the causes first.

Each cause belongs to an alert (:mod:`rq_core.metrics.alerts`), whose section of the runbook has the remedy. A cause is
shown as soon as a reading shows the problem. The alert fires later, when the problem has lasted for some time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from rq_core.errors import RqCoreError, ServerUnsuitable
from rq_core.metrics.alerts import ALERT_BY_NAME
from rq_core.model.lib.text import counted
from rq_core.model.lib.url import AUDIT_URL_VARIABLE
from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.limit import shown
from rq_core.model.limits.pauses import cause_says, pause_of, resume_says
from rq_core.model.limits.scopes import is_rate
from rq_core.model.limits.use import ScopeUse
from rq_core.model.plugins import InboxOverview, InboxQueue, LogOverview, QueueLog
from rq_core.model.table.reasons import Reason
from rq_core.protocol.reads.overview import QUEUES_MAX
from rq_core.protocol.reads.queue_load import (
    LateSchedule,
    Overview,
    QueueOverview,
    ScopeLoad,
    Unserved,
)

_REASONS: Final = {
    str(Reason.POISON): "poison, since each worker that ran it was lost",
    str(Reason.ATTEMPTS_SPENT): "its last attempt failed",
}
"""Explanations of the reasons whose names do not say what happened."""
JUST_NOW_MS = 600_000
"""Milliseconds for which the death of a job counts as a current problem. The alert about dying jobs uses the same
period."""

SCOPES_NAMED: Final = 3
"""Maximum number of paused scopes that a cause names."""
STUCK_MS: Final = 10_000
"""Milliseconds after which a batch of an inbox' rows counts as stuck. (After 5 s, any relay sends the batch to Redis
again.)"""

NOT_READ: Final = f"the audit log was not read: give --audit URL or set {AUDIT_URL_VARIABLE}"


class Cause(NamedTuple):
    """One current problem."""

    alert: str
    """The name of the alert to which the cause belongs."""
    queue: str | None
    says: str

    @property
    def pages(self) -> bool:
        """Return whether the problem is urgent, so that an operator must act now."""
        return ALERT_BY_NAME[self.alert].severity == "page"


class Unread(NamedTuple):
    """The error of a failed reading of Redis, of the log or of an inbox. It is passed in place of the reading."""

    why: str
    refused: bool = False
    """True if Redis answered, but refused to be read: a right or a password is missing, or the server is unsuitable."""

    @classmethod
    def of(cls, error: RqCoreError) -> Self:
        """Create an Unread from the error of a reading."""
        return cls(" ".join(str(error).split()), isinstance(error, ServerUnsuitable))


def causes(
    state: Overview | Unread,
    log: LogOverview | Unread | None = None,
    inbox: InboxOverview | Unread | None = None,
) -> list[Cause]:
    """Return the current problems (causes), the urgent ones first. ``log`` and ``inbox`` are the readings of the audit
    log and the inbox; None for one that was not read.

    Among the urgent causes, and among the others, the order is: an error of Redis, the log, Redis' memory, the queues
    by name, the queues that were not read, and the inbox.
    """
    found = [*_causes(state, log), *causes_of_inbox(inbox)]
    return sorted(found, key=lambda each: not each.pages)


def _causes(state: Overview | Unread, log: LogOverview | Unread | None) -> list[Cause]:
    found: list[Cause] = []
    if isinstance(log, Unread):
        found.append(Cause("RqCoreAuditDown", None, f"the audit log cannot be read: {log.why}"))
    if isinstance(state, Unread):
        alert = "RqCoreRedisRefuses" if state.refused else "RqCoreRedisDown"
        return [Cause(alert, None, state.why), *found]
    if state.used_memory is not None and state.maxmemory:
        ratio = state.used_memory / state.maxmemory
        if ratio > _bound("RqCoreMemory"):
            found.append(Cause("RqCoreMemory", None, f"Redis uses {ratio:.0%} of its maxmemory"))
    logs = {each.queue: each for each in log.queues} if isinstance(log, LogOverview) else {}
    for queue in state.queues:
        found += _of_queue(queue)
        found += _paused_scopes(queue, logs.get(queue.queue))
    if state.strays:
        found.append(Cause("RqCoreQueueUnreadable", None, state.strays))
    if state.queues_left_out:
        says = counted(state.queues_left_out, "queue is not shown", "queues are not shown")
        says += f": a look reads {QUEUES_MAX:,}"
        found.append(Cause("RqCoreQueuesLeftOut", None, says))
    for name, why in state.unreadable.items():
        found.append(Cause("RqCoreQueueUnreadable", name, f"cannot be read: {why}"))
    return found


def _bound(alert: str) -> float:
    """Return the number in the first condition of an alert."""
    return ALERT_BY_NAME[alert].all_of[0].value


def _of_queue(queue: QueueOverview) -> Iterator[Cause]:
    name, present = queue.queue, queue.present
    ready, oldest = queue.ready_jobs, queue.oldest_ready_ms
    if ready and not present:
        # Workers that ended in order are not in the list; such a worker may have run later than the silent ones.
        silent = min((each.silent_ms for each in queue.workers), default=None)
        since = "" if silent is None else f"; a worker fell silent {_span(silent)} ago"
        yield Cause("RqCoreNoWorker", name, f"{ready:,} ready, and no worker runs{since}")
    if ready and queue.paused:
        says = f"paused, and {counted(ready, 'job is ready', 'jobs are ready')}"
        yield Cause("RqCoreQueuePaused", name, says)
    if queue.unserved is not None and present:
        yield Cause("RqCoreTaskUnknown", name, _unserved(queue.unserved))
    # _paused_scopes names the others.
    for scope in queue.spent_scopes:
        yield Cause("RqCoreScopeFull", name, _full(queue, scope))
    if not queue.paused:
        if present and oldest is not None and oldest > 1000 * _bound("RqCoreJobsWait"):
            busy = sum(each.says.busy for each in present)
            places = sum(each.says.places for each in present)
            taken = f"{busy:,} of {counted(places, 'place is', 'places are')} taken"
            says = f"a job has waited for {_span(oldest)}; {taken}"
            yield Cause("RqCoreJobsWait", name, says)
        if queue.overdue_ms > 1000 * _bound("RqCoreNoClaims"):
            says = f"work was due {_span(queue.overdue_ms)} ago, and no worker claims"
            yield Cause("RqCoreNoClaims", name, says)
        if queue.leases_over:
            yield Cause("RqCoreLeasesOver", name, _leases_over(queue))
    yield from _late(queue)
    death = queue.last_death
    if death is not None and death.ago_ms < JUST_NOW_MS:
        why = _REASONS.get(death.reason, death.reason)
        says = f"a job of {death.task} died {_span(death.ago_ms)} ago: {why}; {queue.dead:,} dead in all"
        yield Cause("RqCoreJobsDie", name, says)
    if queue.backlog_ratio > _bound("RqCoreBacklogHalf"):
        wait = counted(queue.backlog, "event waits", "events wait")
        says = f"{wait} to be mirrored, {queue.backlog_ratio:.0%} of what is allowed"
        yield Cause("RqCoreBacklogHalf", name, says)
    if behind := mirror_behind(queue):
        yield Cause("RqCoreMirrorBehind", name, behind)
    if len({(each.says.version, each.says.code) for each in present}) > 1:
        yield Cause("RqCoreCodeSkew", name, "its workers run different code or versions of rq-core")


def _paused_scopes(queue: QueueOverview, log: QueueLog | None) -> Iterator[Cause]:
    """Yield the cause that names the scopes of a queue that are paused, or probing (tested by one job after a pause).
    ``log`` says who or what paused each scope.
    """
    scopes = queue.paused_scopes
    if not scopes:
        return
    named = [
        f"{scope} {_standing(use, queue.now_ms)}{_paused_by(scope, use, log)}"
        for scope, use in list(scopes.items())[:SCOPES_NAMED]
    ]
    if len(scopes) > len(named):
        least = "" if queue.paused_scopes_exact else "at least "
        named.append(f"and {least}{counted(len(scopes) - len(named), 'more scope')}")
    if paused := [scope for scope, use in scopes.items() if use.standing == "paused"]:
        named.append(resume_says(queue.queue, paused))
    yield Cause("RqCoreScopePaused", queue.queue, "; ".join(named))


def _standing(use: ScopeUse, now_ms: int) -> str:
    if use.standing == "probing":
        return f"is probing with job {use.probe}" if use.probe else "awaits a probe"
    if use.until_ms is None:
        return "is paused until resume-scope"
    return f"is paused for {_span(max(0, use.until_ms - now_ms))}"


def _paused_by(scope: str, use: ScopeUse, log: QueueLog | None) -> str:
    pause = None if log is None else pause_of(use, log.last_pauses.get(scope))
    if pause is not None:
        return f", {cause_says(pause)}"
    return f", by {use.by}" if use.by else ""


def _late(queue: QueueOverview) -> Iterator[Cause]:
    late = queue.late_schedule
    if late is not None and late.late_ms > 1000 * _bound("RqCoreScheduleLate"):
        yield Cause("RqCoreScheduleLate", queue.queue, _late_says(queue, late))


def _late_says(queue: QueueOverview, late: LateSchedule) -> str:
    """Return a sentence about a late schedule, with what an operator should do."""
    says = f"schedule {late.name} of queue {queue.queue} is late by {_span(late.late_ms)}"
    if not queue.present:
        return f"{says}: no worker runs; start one"
    if queue.audit and queue.backlog_ratio >= 1:
        return f"{says}: the audit log's backlog is full, so nothing is enqueued; start the mirror"
    if queue.remembered_ratio >= 1:
        return f"{says}: no more ids may be remembered, so nothing is enqueued; raise results_max"
    return f"{says}: workers run, and their logs say why they do not serve it; `rq-core schedules {queue.queue}`"


def causes_of_inbox(inbox: InboxOverview | Unread | None) -> Iterator[Cause]:
    """Yield the current problems (causes) of an inbox. Nothing is yielded for None: the inbox was not read."""
    if inbox is None:
        return
    if isinstance(inbox, Unread):
        yield Cause("RqCoreInboxDown", None, f"the inbox cannot be read: {inbox.why}")
        return
    for queue in inbox.queues:
        if queue.oldest_ms is not None and queue.oldest_ms > 1000 * _bound("RqCoreInboxWaits"):
            yield Cause("RqCoreInboxWaits", queue.queue, _inbox_waits(queue, queue.oldest_ms))
        if queue.parked > _bound("RqCoreInboxParked"):
            least = "" if queue.parked_exact else "at least "
            rows = counted(
                queue.parked, "row of the inbox is parked", "rows of the inbox are parked"
            )
            says = f"{least}{rows}: `rq-core inbox parked URL` says why"
            yield Cause("RqCoreInboxParked", queue.queue, says)
    if inbox.queues_left_out:
        left = counted(inbox.queues_left_out, "queue of the inbox is", "queues of the inbox are")
        says = f"{left} not shown: a look reads {len(inbox.queues):,}"
        yield Cause("RqCoreQueuesLeftOut", None, says)


def _inbox_waits(queue: InboxQueue, oldest_ms: int) -> str:
    """Return a sentence about rows that wait in an inbox, and about the relay: whether it takes them, or is stuck."""
    least = "" if queue.rows_exact else "at least "
    rows = counted(queue.rows, "row waits", "rows wait")
    says = f"{least}{rows} in the inbox, the oldest for {_span(oldest_ms)}"
    if queue.damage is not None:
        return f"{says}: {queue.damage}"
    if queue.sent_ms is None:
        return f"{says}, and no relay takes them: run `rq-core inbox run URL`"
    if queue.sent_ms > STUCK_MS:
        stuck = f"a batch was chosen {_span(queue.sent_ms)} ago and not handed over"
        return f"{says}; {stuck}: run `rq-core inbox run URL`, or if it runs, its log says why"
    return f"{says}; a relay hands them over"


def _unserved(jobs: Unserved) -> str:
    many = counted(jobs.jobs, f"job of {jobs.task} was", f"jobs of {jobs.task} were")
    why = "lack the task or refuse its arguments" if jobs.task_known else "do not have this task"
    return f"at least {many} given back by workers, which {why}"


def _leases_over(queue: QueueOverview) -> str:
    """Return a sentence about running jobs whose leases have expired, and about when a worker was last active."""
    many = queue.leases_over
    lost = counted(many, "running job has lost its worker", "running jobs have lost their worker")
    them = "it" if many == 1 else "them"
    inactive, lease = queue.inactive_ms, queue.settings["lease_ms"]
    # A longer pause counts as an outage.
    if inactive is not None and 3 * inactive <= 2 * lease:
        if queue.ends_leases_in_ms:
            return f"{lost}; a worker is back, and takes {them} over in {_span(queue.ends_leases_in_ms)}"
        return f"{lost}; a worker is alive, and its next claim takes {them} over"
    since = "" if inactive is None else f" for {_span(inactive)}"
    heard = ", although one reported in the last 30 s" if queue.present else ""
    return f"{lost}, and no worker has claimed{since}{heard}"


def _full(queue: QueueOverview, scope: ScopeLoad) -> str:
    limit = shown(scope.limit)
    running = f"{scope.holders:,} of {limit} running"
    if scope.scope == "queue":
        wait = counted(queue.ready_jobs, "job waits", "jobs wait")
        return f"the cap of the queue is full, {running}; {wait}"
    exact = "" if scope.blocked_jobs_exact else "at least "
    jobs = counted(scope.blocked_jobs, "job waits", "jobs wait")
    wait = f"{exact}{jobs} in {counted(scope.blocked_lanes, 'lane')}"
    if scope.oldest_blocked_ms is not None:
        least = "" if queue.oldest_blocked_exact else "at least "
        wait += f", the oldest for {least}{_span(scope.oldest_blocked_ms)}"
    if is_breaker(scope.scope):
        some = " for some of its keys" if scope.is_family else ""
        return f"the breaker of {scope.scope} is paused{some}; {wait}"
    if is_rate(scope.scope):
        each = " for some of its keys, each" if scope.is_family else ""
        return f"the rate of {scope.scope} is spent{each} {limit}; {wait}"
    if scope.is_family:
        return f"the cap of {scope.scope} is full for some of its keys, {limit} each; {wait}"
    return f"the cap of {scope.scope} is full, {running}; {wait}"


def mirror_behind(queue: QueueOverview) -> str:
    """Return a sentence if the oldest event of a queue has waited too long for the mirror; empty if not."""
    waits = queue.oldest_event_ms
    if waits is None or waits <= 1000 * _bound("RqCoreMirrorBehind"):
        return ""
    events = counted(queue.backlog, "event waits", "events wait")
    return f"the mirror is at least {_span(waits)} behind: {events}"


def unread_log(state: Overview | Unread, log: LogOverview | Unread | None) -> str:
    """Return a sentence if the audit log was not read although queues are mirrored; empty if not."""
    if log is not None or isinstance(state, Unread):
        return ""
    mirrored = [queue for queue in state.queues if queue.audit]
    if not mirrored:
        return ""
    waits = {q.queue: q.oldest_event_ms for q in mirrored if q.oldest_event_ms is not None}
    if not waits:
        return f"{NOT_READ}; no event waits for the mirror"
    queue = max(waits, key=lambda name: waits[name])
    return f"{NOT_READ}; the oldest event has waited for the mirror for {_span(waits[queue])}, in {queue}"


def _span(ms: float) -> str:
    """Return a duration (ms) as rounded text in one unit, like ``90 s``, ``90 min``, ``5 h`` or ``3 d``."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:.0f} {unit}"
    return f"{ms / 1000:.0f} s"
