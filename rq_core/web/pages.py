"""The table of pages: each page's address, reads of Redis and of the audit log, document, and template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.keys import check_name
from rq_core.model.table.machine import State
from rq_core.views import jobs as job_lists
from rq_core.views import scopes as scope_lists
from rq_core.views.jobs import ListedJob
from rq_core.web import views
from rq_core.web.minutes import CHART_MINUTES, MINUTE_MS, SPARK_MINUTES, chart_begin, first_minute
from rq_core.web.rows import Document
from rq_core.web.views import ROWS_MAX, Facts, PageQuery

if TYPE_CHECKING:
    from rq_core.model.plugins import AuditQuestions, LogOverview
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.protocol.reads.queue_load import Overview

QUEUES_MAX: Final = 10
"""Queues that one page reads one by one."""
DAY_MS: Final = 24 * 60 * MINUTE_MS


class Now(NamedTuple):
    """The facts that a page has before it asks: its address, and the shared look at the source that it asks."""

    asked: PageQuery
    now_ms: int
    state: Overview | None = None
    """Where Redis is asked."""
    log: LogOverview | None = None
    """Where the audit log is asked."""

    def names(self) -> list[str]:
        """Return the requested queue, or all queues of the log."""
        if self.asked.queue is not None:
            return [self.asked.queue]
        known = () if self.log is None else self.log.queues
        return [each.queue for each in known][:QUEUES_MAX]


Reads = Callable[["Operations", Now], "Plan[Any]"]
Asks = Callable[["AuditQuestions", Now], Any]


class Page(NamedTuple):
    """A page. Every viewer may see it."""

    path: str
    name: str
    title: str
    view: Callable[[Facts], Document]
    redis: Reads | None = None
    """A plan that reads; None: the shared look has all."""
    log: Asks | None = None
    """A question to the audit log; None: the shared look has all."""
    of_past: bool = False
    """Whether there is nothing to show without an audit log."""

    @property
    def template(self) -> str:
        """Return the file in ``templates``."""
        return f"{self.name}.html"

    @property
    def json_path(self) -> str:
        """Return the path of the page's document."""
        return "/index.json" if self.path == "/" else f"{self.path}.json"


# What pages ask of Redis.


def _limits(calls: Operations, now: Now) -> Plan[Any]:
    return (yield from scope_lists.scopes(calls, now.asked.queue or "", ROWS_MAX))


def _jobs(calls: Operations, now: Now) -> Plan[Any]:
    if now.asked.queue is None:
        return None
    asked = now.asked
    return (yield from job_lists.listed(calls, now.asked.queue, asked.states, asked.task, ROWS_MAX))


def _job(calls: Operations, now: Now) -> Plan[Any]:
    """A job that is alive, or what Redis remembers of one that has ended; None if it knows of none."""
    queue, reads = now.asked.queue or "", calls.reads
    found = yield from reads.job(now.asked.job_id, [queue])
    if found is None:
        ended = yield from reads.ended(now.asked.job_id, [queue])
        return None if ended is None else ("ended", *ended)
    standing = yield from reads.standing(found)
    known = yield from reads.known_tasks(queue)
    back = yield from reads.given_back(queue, [found])
    return "live", ListedJob(found, known, back.get(found.id)), standing


def _dead(calls: Operations, now: Now) -> Plan[Any]:
    if now.asked.queue is not None:
        return [(yield from job_lists.dead_jobs(calls, now.asked.queue, ROWS_MAX))]
    queues = () if now.state is None else now.state.queues
    last = sorted((q for q in queues if q.dead and q.last_death), key=_death_ago)[:QUEUES_MAX]
    found: list[Any] = []
    for queue in last:
        some = yield from job_lists.dead_jobs(calls, queue.queue, ROWS_MAX // len(last))
        found += [some]
    return found


def _death_ago(queue: Any) -> int:
    return int(queue.last_death.ago_ms)


# What pages ask of the audit log.


def _spark(log: AuditQuestions, now: Now) -> Any:
    return log.minutes(first_minute(now.now_ms, SPARK_MINUTES), now.now_ms + MINUTE_MS, None)


def _flow(log: AuditQuestions, now: Now) -> Any:
    queue = now.asked.queue
    since = first_minute(now.now_ms, CHART_MINUTES)
    return {
        "minutes": log.minutes(since, now.now_ms + MINUTE_MS, queue),
        "errors": log.errors(first_minute(now.now_ms, SPARK_MINUTES), queue),
    }


def _story(log: AuditQuestions, now: Now) -> Any:
    queue, job_id = now.asked.queue or "", now.asked.job_id
    return {"history": log.history(job_id, queue), "why": log.why(job_id, queue)}


def _errors(log: AuditQuestions, now: Now) -> Any:
    return log.errors(now.now_ms - DAY_MS, now.asked.queue)


def _tail(log: AuditQuestions, now: Now) -> Any:
    return log.tail(now.names(), ROWS_MAX)


def _moment(log: AuditQuestions, now: Now) -> Any:
    at_ms = now.now_ms if now.asked.at_ms is None else now.asked.at_ms
    since = chart_begin(at_ms, now.now_ms)
    return {
        "minutes": log.minutes(since, since + CHART_MINUTES * MINUTE_MS, now.asked.queue),
        "at": {name: log.at(name, at_ms) for name in now.names()},
    }


def _findings(log: AuditQuestions, _now: Now) -> Any:
    return log.findings()


PAGES: Final = (
    Page("/", "overview", "Overview", views.overview_page, log=_spark),
    Page("/jobs", "jobs", "Jobs", views.jobs_page, redis=_jobs),
    Page("/dead", "dead", "Dead", views.dead_page, redis=_dead, log=_errors),
    Page("/workers", "workers", "Workers", views.workers_page),
    Page("/log", "log", "Log", views.log_page, log=_tail, of_past=True),
    Page("/at", "at", "Then", views.at_page, log=_moment, of_past=True),
    Page("/audit", "audit", "Audit", views.audit_page, log=_findings, of_past=True),
    Page("/queues/{queue}", "queue", "Queue", views.queue_page, redis=_limits, log=_flow),
    Page("/jobs/{queue}/{id}", "job", "Job", views.job_page, redis=_job, log=_story),
)  # fmt: skip
"""The first ones stand in the menu. An address with a queue or a job has a second form behind a ``?``: see ALSO."""
ALSO: Final[Mapping[str, str]] = {"queue": "/queue", "job": "/job"}
"""For names that cannot stand in a path: ``/queue?queue=..``, ``/job?queue=..&id=..``."""


# What an address asks for.


def asked_of(path: Mapping[str, Any], query: Mapping[str, str], now_ms: int) -> PageQuery:
    """Read an address. Raises InvalidName or InvalidOption."""
    queue = path.get("queue") or query.get("queue") or None
    if queue is not None:
        check_name("queue", queue)
    job_id = str(path.get("id") or query.get("id") or "")
    if job_id:
        check_name("job", job_id)
    task = query.get("task") or None
    if task is not None:
        check_name("task", task)
    words = [each for each in query.get("state", "").split(",") if each]
    unknown = [each for each in words if each not in set(State)]
    if unknown:
        raise InvalidOption.of("state", unknown[0], f"must be one of {', '.join(State)}")
    states = tuple(State(each) for each in dict.fromkeys(words))
    t = query.get("t", "").strip()
    return PageQuery(queue, job_id, states, task, parse_moment(t, now_ms) if t else None)


_AGO: Final = re.compile(r"(\d{1,6}) ?(s|m|h|d)(?: ago)?")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str, now_ms: int) -> int:
    """Read a moment as Unix ms: those, ``2026-11-21 10:00`` (UTC if no zone is given), ``10m ago``, or ``now``.

    Raises InvalidOption.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    if text == "now":
        return now_ms
    if found := _AGO.fullmatch(text):
        return max(0, now_ms - int(found[1]) * _UNIT_MS[found[2]])
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0, int(zoned.timestamp() * 1000))
    except (ValueError, OverflowError):
        must = "must be like 2026-11-21 10:00, 10m ago, now, or Unix ms"
        raise InvalidOption.of("t", text[:100], must) from None
