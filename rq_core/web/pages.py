"""The table of the web pages: for each page its address, what it reads from Redis and the audit log, its document (a
dict) and its template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.views import jobs as job_lists
from rq_core.views import schedules as schedule_lists
from rq_core.views import scopes as scope_lists
from rq_core.views.jobs import ListedJob
from rq_core.views.steps import SHOWN_MAX
from rq_core.web import job_lists as job_pages
from rq_core.web import schedules as schedule_pages
from rq_core.web import views
from rq_core.web.acting import bulk
from rq_core.web.acting.copies import seen_copies
from rq_core.web.graph.flow_rows import flow_of
from rq_core.web.minutes import CHART_MINUTES, MINUTE_MS, SPARK_MINUTES, chart_begin, first_minute
from rq_core.web.rows import Document
from rq_core.web.search import WORDS, PageQuery
from rq_core.web.tokens import OPERATOR, VIEWER
from rq_core.web.views import ROWS_MAX, Facts

if TYPE_CHECKING:
    from rq_core.app.app import App
    from rq_core.model.filters.copy_reader import CopyReader
    from rq_core.model.plugins import AuditQuestions, LogOverview
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.protocol.reads.queue_load import Overview

QUEUES_MAX: Final = 10
"""Maximum number of queues for which one page reads further data, queue by queue."""
LANES_MAX: Final = 1_000
"""Maximum number of lanes (jobs of the same priority and scopes) whose jobs one page counts. The number is lower than
for the command line, since an open page is read again every two seconds."""
MEMBERS_MAX: Final = 5_000
"""Maximum number of jobs that are read for one list. The number is lower than for the command line, since an open page
is read again every two seconds."""
SPECS_MAX: Final = 500
"""Maximum number of jobs that are read for one list if the search needs their headers or arguments."""
DAY_MS: Final = 24 * 60 * MINUTE_MS


class Now(NamedTuple):
    """The data that a page has before it reads more: its address, the time, and the state that all pages share."""

    asked: PageQuery
    now_ms: int
    state: Overview | None = None
    """The state of all queues, which all pages share; None if the page is about to read the audit log."""
    log: LogOverview | None = None
    """The overview of the audit log, which all pages share; None if the page is about to read Redis."""

    def names(self) -> list[str]:
        """Return the name of the requested queue, as a list. If no queue is requested, return the log's first
        QUEUES_MAX queues."""
        if self.asked.queue is not None:
            return [self.asked.queue]
        known = () if self.log is None else self.log.queues
        return [each.queue for each in known][:QUEUES_MAX]


Reads = Callable[["Operations", Now], "Plan[Any]"]
Asks = Callable[["AuditQuestions", Now], Any]


class Page(NamedTuple):
    """A web page: its address, its title, what it reads, and the function that makes its document."""

    path: str
    name: str
    title: str
    view: Callable[[Facts], Document]
    says: str = ""
    """A sentence about what the page shows, for programs that read it."""
    asks: tuple[str, ...] = ()
    """The query parameters that the address may have, in addition to the names in its path. ASKS explains them."""
    redis: Reads | None = None
    """A function that returns a plan to read further data from Redis; None if the page needs only the shared state."""
    log: Asks | None = None
    """A function that reads further data from the audit log; None if the page needs only the shared overview."""
    copies: Callable[[App, CopyReader | None, Now], Any] | None = None
    """A function that counts the jobs to copy. It is called if ``redis`` has returned None."""
    of_past: bool = False
    """True if the page shows nothing without an audit log."""
    role: str = VIEWER
    """The lowest role that may see the page."""

    @property
    def template(self) -> str:
        """The name of the page's file in the directory ``templates``."""
        return f"{self.name}.html"

    @property
    def names(self) -> list[str]:
        """The names in the page's path, such as ``queue``."""
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def json_path(self) -> str:
        """The path of the page's document as JSON."""
        return "/index.json" if self.path == "/" else f"{self.path}.json"


# What pages ask of Redis.


def _limits(calls: Operations, now: Now) -> Plan[Any]:
    return (yield from scope_lists.scopes(calls, now.asked.queue or "", ROWS_MAX, lanes=LANES_MAX))


def _jobs(calls: Operations, now: Now) -> Plan[Any]:
    """Read the live jobs that the search finds. If the search has an id and no queue, all queues are searched."""
    asked = now.asked
    if asked.job_id:
        queues = [each.queue for each in now.state.queues] if now.state else []
        queues = [asked.queue] if asked.queue else queues
        return (yield from calls.reads.job(asked.job_id, queues))
    if asked.queue is None or asked.of_ended:
        return None
    return (
        yield from job_lists.listed(
            calls,
            asked.queue,
            asked.filter.only_states,
            asked.filter.task,
            ROWS_MAX,
            which=asked.filter,
            now_ms=now.now_ms,
            members=SPECS_MAX if asked.filter.needs_spec else MEMBERS_MAX,
        )
    )


def _job(calls: Operations, now: Now) -> Plan[Any]:
    """Read a live job, or the outcome that Redis keeps of an ended job. The plan returns None if Redis has neither."""
    queue, reads = now.asked.queue or "", calls.reads
    found = yield from reads.job(now.asked.job_id, [queue])
    if found is None:
        ended = yield from reads.ended(now.asked.job_id, [queue])
        return None if ended is None else ("ended", *ended)
    standing = yield from reads.standing(found)
    known = yield from reads.known_tasks(queue)
    back = yield from reads.given_back(queue, [found])
    life = found.fields.get("life")
    steps = None
    if life is not None:
        steps = yield from reads.saved_steps(queue, life, SHOWN_MAX)
    progress = yield from reads.progress(queue, found.id)
    flow = yield from flow_of(calls, found)
    return "live", ListedJob(found, known, back.get(found.id)), standing, steps, progress, flow


def _schedules(calls: Operations, now: Now) -> Plan[Any]:
    queue, state = now.asked.queue, now.state
    having = [each.queue for each in state.queues if each.schedules is not None] if state else []
    queues = [queue] if queue else having
    found = yield from schedule_lists.schedules_of(calls, queues)
    return found


def _bulk(calls: Operations, now: Now) -> Plan[Any]:
    return (yield from bulk.seen(calls, dict(now.asked.form), now.now_ms))


def _copies(app: App, log: CopyReader | None, now: Now) -> Any:
    return seen_copies(app, log, dict(now.asked.form), now.now_ms)


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
        "pauses": {} if queue is None else log.pauses(queue, None),
    }


def _story(log: AuditQuestions, now: Now) -> Any:
    queue, job_id = now.asked.queue or "", now.asked.job_id
    return {
        "history": log.history(job_id, queue, before=now.asked.before),
        "why": log.why(job_id, queue),
    }


def _ended(log: AuditQuestions, now: Now) -> Any:
    """Read the ended claims that the search finds. If the search has an id, read the jobs with this id."""
    asked = now.asked
    if asked.job_id:
        return log.with_id(asked.job_id)
    if not asked.of_ended:
        return None
    which = asked.filter
    since_ms, until_ms = which.instants_ms
    return log.ended(
        asked.outcomes, asked.queue, task=which.task or "", error=which.error or "", worker=which.worker or "",
        scope=which.scope or "", since_ms=since_ms or 0, until_ms=until_ms, after=asked.behind, limit=ROWS_MAX,
    )  # fmt: skip


def _errors(log: AuditQuestions, now: Now) -> Any:
    since = now.now_ms - DAY_MS
    return {
        "errors": log.errors(since, now.asked.queue),
        "deaths": log.deaths(since, now.asked.queue),
    }


def _tail(log: AuditQuestions, now: Now) -> Any:
    """Read the latest events of the queues in ``Now.names``, or one page of events of the requested queue."""
    asked = now.asked
    if asked.queue is None:
        return {"events": log.tail(now.names(), ROWS_MAX), "older": False, "newer": False}
    return log.events(asked.queue, ROWS_MAX, before=asked.before, after=asked.after)


def _ticks(log: AuditQuestions, now: Now) -> Any:
    """Read the last instants of the requested schedule; without one, read the last instant of each schedule of the
    queues in ``Now.names``."""
    if now.asked.name:
        return log.schedule(now.asked.queue or "", now.asked.name, ROWS_MAX)
    return {name: log.last_ticks(name) for name in now.names()}


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
    Page(
        "/", "overview", "Overview", views.overview_page,
        "What is wrong now, and the number of jobs of each queue by state.", log=_spark,
    ),
    Page(
        "/jobs", "jobs", "Jobs", job_pages.jobs_page,
        "The jobs that a search finds: jobs that are alive, or claims that ended if the search has the word outcome.",
        ("q", "behind"), redis=_jobs, log=_ended,
    ),
    Page(
        "/dead", "dead", "Dead", views.dead_page,
        "The jobs that died last, and the errors of the last 24 hours by queue, task and type.",
        ("queue",), redis=_dead, log=_errors,
    ),
    Page(
        bulk.PATH, "bulk", "Change many", bulk.bulk_page,
        "The number of jobs that match a filter, before they are changed.",
        redis=_bulk, copies=_copies, role=OPERATOR,
    ),
    Page(
        "/workers", "workers", "Workers", views.workers_page,
        "The workers, the code that each runs, and how busy each is.",
    ),
    Page(
        "/schedules", "schedules", "Schedules", schedule_pages.schedules_page,
        "The schedules, when each is due next, and its last instant.",
        ("queue",), redis=_schedules, log=_ticks,
    ),
    Page(
        "/log", "log", "Log", views.log_page,
        "The last events of all queues, or a page of the events of one queue, the newest first.",
        ("queue", "before", "after"), log=_tail, of_past=True,
    ),
    Page(
        "/at", "at", "Then", views.at_page,
        "What ran and what waited at a past moment.", ("queue", "t"), log=_moment, of_past=True,
    ),
    Page(
        "/audit", "audit", "Audit", views.audit_page,
        "How complete the audit log is: missing parts, losses, and proofs.", log=_findings, of_past=True,
    ),
    Page(
        "/queues/{queue}", "queue", "Queue", views.queue_page,
        "One queue: its counts, its limits, its settings, its workers, and its last errors.", redis=_limits, log=_flow,
    ),
    Page(
        "/jobs/{queue}/{id}", "job", "Job", views.job_page,
        "One job: its state, why it does not run now, its events, and its waits.",
        ("before",), redis=_job, log=_story,
    ),
    Page(
        "/schedules/{queue}/{name}", "schedule", "Schedule", schedule_pages.schedule_page,
        "One schedule: its rule, its next instants, and its last instants.", redis=_schedules, log=_ticks,
    ),
)  # fmt: skip
"""The pages. The menu shows those whose path contains no name. A page of a queue, job or schedule has a second address
with the names in the query: see ALSO."""
ALSO: Final[Mapping[str, str]] = {"queue": "/queue", "job": "/job", "schedule": "/schedule"}
"""Second addresses of the pages of a queue, job or schedule, with the name in the query. They are for names that a
browser or server would change in a path, such as ``..`` or ``a.json``. The queue named ``..`` has the address
``/queue?queue=..``."""
ASKS: Final[Mapping[str, str]] = {
    "queue": "the name of a queue",
    "id": "the id of a job",
    "name": "the name of a schedule",
    "q": f"a search, like 'queue:mail state:dead'; its words are {', '.join(WORDS)}",
    "t": "a moment, like '2026-11-21 10:00' (UTC), '10m ago', or Unix ms; by default, now",
    "before": "the place of an event: the events before it are shown",
    "after": "the place of an event: the events after it are shown",
    "behind": "the place of a claim that ended, as the page before says it: the next claims are shown",
}
"""The meanings of the query parameters in addresses."""
