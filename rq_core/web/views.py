"""Makes the documents of the web pages from the data that was read, without I/O. A document is the dict that a template
shows as HTML and ``.json`` sends.

The current problems come from :mod:`rq_core.metrics.causes`; the states of jobs and scopes come from
:mod:`rq_core.views` and the reader of the audit log. The contents of jobs are left out unless ``Access.see_arguments``
is true: arguments, results, headers, messages of errors, names of unique jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rq_core.metrics.causes import Cause, Unread, causes
from rq_core.model.durable.children import read_child_wait
from rq_core.model.limits.pauses import pause_of
from rq_core.model.plugins import InboxOverview, LogOverview
from rq_core.protocol.reads.queue_load import Overview, QueueOverview
from rq_core.views.job import ended_document, ended_rows, job_rows
from rq_core.views.scopes import (
    holders_of,
    limit_of,
    scope_document,
    scope_notes,
    standing_document,
    waiting_of,
    with_pauses,
)
from rq_core.views.steps import signal_documents, step_documents, waits_for
from rq_core.web.graph.flow_rows import flow_document, flow_progress
from rq_core.web.minutes import (
    CHART_MINUTES,
    HOUR_MS,
    MINUTE_MS,
    SPARK_MINUTES,
    chart_begin,
    count_minutes,
    first_minute,
    rows_by_queue,
)
from rq_core.web.rows import (
    LOG_PATH,
    Document,
    cause_row,
    comes_from,
    dead_row,
    death_rows,
    error_rows,
    error_says,
    event_row,
    listed_row,
    progress_shown,
    queue_row,
    shown_rows,
    signal_shown,
    span_of,
    step_shown,
    steps_of,
    urgency,
    wait_row,
    without_carried,
    worker_row,
)
from rq_core.web.search import PageQuery
from rq_core.web.tokens import Access
from rq_core.web.words import job_path, query, word

if TYPE_CHECKING:
    from rq_core.views.table import Found

ROWS_MAX: Final = 100
"""Maximum number of rows of a list."""
FEW: Final = 10
"""Maximum number of rows of each list, on a page that has one list for each queue."""
_WHY_ROWS: Final = frozenset(
    {
        "waits for", "cap", "rate", "breaker", "scope", "resume", "resumes", "held by", "", "ahead", "given back",
        "to do", "due",
    }
)  # fmt: skip
"""Names of the rows that say why a job does not run."""


@dataclass(frozen=True)
class Facts:
    """The data from which the document of a page is made."""

    asked: PageQuery
    access: Access
    now_ms: int
    state: Overview | Unread
    log: LogOverview | Unread | None
    """The overview of the audit log; an Unread if it cannot be read, None if there is no log."""
    found: Any = None
    """The page's own data from Redis; an Unread if it cannot be read."""
    logged: Any = None
    """The page's own data from the audit log; an Unread if it cannot be read."""
    inbox: InboxOverview | Unread | None = None
    """The overview of the inbox; an Unread if it cannot be read, None if there is no inbox."""

    @property
    def causes(self) -> list[Cause]:
        """The current problems of the queues, the log and the inbox, each with a sentence."""
        return causes(self.state, self.log, self.inbox)

    @property
    def queues(self) -> tuple[QueueOverview, ...]:
        """The queues that could be read."""
        return () if isinstance(self.state, Unread) else self.state.queues

    @property
    def queue(self) -> QueueOverview | None:
        """The requested queue; None if Redis does not have the queue, or cannot be read."""
        return next((each for each in self.queues if each.queue == self.asked.queue), None)


# What every page has.


def frame(facts: Facts) -> Document:
    """Return the part that all documents have: the sources that cannot be read, and the number of current problems."""
    wrong = facts.causes
    parts = {
        "Redis": facts.state, "the audit log": facts.log, "the inbox": facts.inbox, "this page": facts.found,
        "the past": facts.logged,
    }  # fmt: skip
    unread = [
        {"what": what, "why": word(part.why)}
        for what, part in parts.items()
        if isinstance(part, Unread)
    ]
    said: list[str] = []
    for each in unread:
        if each["why"] in said:
            each["why"] = ""
        said.append(each["why"])
    return {
        "now_ms": facts.now_ms,
        "unread": [each for each in unread if each["why"]],
        "wrong": len(wrong),
        "pages": sum(each.pages for each in wrong),
        "sees_arguments": facts.access.see_arguments,
        "live": not facts.asked.fixed,
    }


# Pages.


def overview_page(facts: Facts) -> Document:
    """Return the document of the start page, with all current problems and all queues."""
    found = facts.state
    document: Document = {
        "causes": [cause_row(each) for each in facts.causes],
        "queues": [],
        "notes": [],
    }
    if isinstance(found, Unread):
        return document
    workers = {each.worker: each.says for queue in found.queues for each in queue.present}
    totals = ("ready_jobs", "running", "scheduled", "parked", "dead")
    document["totals"] = {
        **{name: sum(getattr(queue, name) for queue in found.queues) for name in totals},
        "queues": len(found.queues),
        "workers": len(workers),
        "busy": sum(each.busy for each in workers.values()),
        "places": sum(each.places for each in workers.values()),
        "used_memory": found.used_memory,
    }
    minutes = rows_by_queue(facts.logged)
    since = first_minute(facts.now_ms, SPARK_MINUTES)
    # The causes that page come first.
    wrong = {each["queue"]: urgency(each) for each in reversed(document["causes"])}
    for queue in found.queues:
        row = queue_row(queue, facts.now_ms)
        row["wrong"] = wrong.get(queue.queue, "")
        rows = minutes.get(queue.queue)
        if minutes or isinstance(facts.logged, list):
            row["minutes"] = count_minutes(rows or (), since, SPARK_MINUTES)
        document["queues"].append(row)
    document["notes"] = _denied(found)
    return document


def _denied(found: Overview) -> list[str]:
    if not found.denied:
        return []
    return [f"not looked at, since this user may not read them: {', '.join(found.denied)}"]


def queue_page(facts: Facts) -> Document:
    """Return the document of one queue's page: its state and settings, problems, limits and workers, its ended claims
    by minute, and its last errors."""
    name, found = facts.asked.queue or "", facts.queue
    document: Document = {
        "name": name,
        "queue": None,
        "causes": [],
        "limits": [],
        "workers": [],
        "notes": [],
    }
    if found is not None:
        document["queue"] = queue_row(found, facts.now_ms)
        document["workers"] = [worker_row(each) for each in found.workers]
    document["causes"] = [cause_row(each) for each in facts.causes if each.queue == name]
    if not isinstance(facts.found, Unread | None):
        limits: Found[Any] = facts.found
        logged = not isinstance(facts.logged, Unread | None)
        pauses = facts.logged["pauses"] if logged else {}
        document["limits"] = [
            scope_document(each)
            | {
                "limit_says": limit_of(each),
                "holders_says": str(holders_of(each)),
                "waiting_says": waiting_of(each),
                "notes": scope_notes(each, facts.now_ms),
            }
            for each in with_pauses(limits.rows, pauses)
        ]
        document["notes"] = [*limits.notes]
    if not isinstance(facts.logged, Unread | None):
        since = first_minute(facts.now_ms, CHART_MINUTES)
        document["minutes"] = count_minutes(facts.logged["minutes"], since, CHART_MINUTES)
        last_hour = first_minute(facts.now_ms, SPARK_MINUTES)
        document["errors"] = error_rows(facts.logged["errors"], last_hour)
    return document


def job_page(facts: Facts) -> Document:
    """Return the document of one job's page: its state, why it does not run now, its waits, and its events."""
    asked, found, logged = facts.asked, facts.found, facts.logged
    document: Document = {
        "id": asked.job_id, "queue": asked.queue, "job": None, "facts": [], "why": [], "ended": None,
        "events": [], "path": [], "waits": [], "notes": [], "steps": [],
        "signals": [], "waits_for": [], "progress": None, "flow": None, "comes_from": [],
    }  # fmt: skip
    if isinstance(found, tuple) and found[0] == "live":
        _, row, standing, steps, progress, flow = found
        if standing.scope is not None and not isinstance(logged, Unread | None) and logged["why"]:
            pauses = {p["scope"]: p for w in logged["why"]["waits"] for p in reversed(w["pauses"])}
            pause = pause_of(standing.use, pauses.get(standing.scope))
            standing = standing._replace(pause=pause)
        rows = job_rows(row, standing, facts.now_ms)
        document["job"] = listed_row(row, facts.access, facts.now_ms) | standing_document(standing)
        document["facts"] = shown_rows(rows[3:], facts.access, without=_WHY_ROWS)
        if row.job.error is not None:
            document["facts"] = [
                [n, error_says(row.job.error, facts.access) if n == "error" else text]
                for n, text in document["facts"]
            ]
        document["comes_from"] = comes_from(row.job)
        document["progress"] = flow_progress(
            progress_shown(progress, facts.access), flow, facts.now_ms
        )
        document["flow"] = flow_document(flow, row.job, facts.causes)
        if steps is not None:
            document["steps_lost"] = steps.is_lost
            document["steps_count"] = steps.size
            document["steps"] = [
                step_shown(each, facts.access) for each in step_documents(steps, with_values=False)
            ]
            if not steps.is_lost:
                document["waits_for"] = [
                    each | {"says": word(each["says"])}
                    for each in waits_for(row.job.fields.get("waits"), steps)
                ]
            document["signals"] = [
                signal_shown(each, facts.access)
                for each in signal_documents(steps)
                if read_child_wait(each["name"]) is None
            ]
        document["why"] = [[n, word(text, 500)] for n, text in rows if n in _WHY_ROWS]
        if facts.access.see_arguments and row.job.error is not None:
            document["traceback"] = row.job.error.traceback
    elif isinstance(found, tuple) and found[0] == "ended":
        _, queue_name, result, value = found
        document["facts"] = shown_rows(
            ended_rows(queue_name, result, value, facts.now_ms)[2:], facts.access
        )
        document["ended"] = without_carried(ended_document(queue_name, result, value), facts.access)
    if not isinstance(logged, Unread | None):
        events = [event_row(each, facts.access) for each in logged["history"]["events"]]
        document["events"] = events
        page, job = logged["history"], {"queue": asked.queue, "id": asked.job_id}
        document["older"] = (
            query("/job", **job, before=events[0]["place"]) if page["older"] else None
        )
        document["last_ones"] = job_path(asked.queue or "", asked.job_id) if page["newer"] else None
        document["notes"] = [word(each) for each in logged["history"]["notes"]]
        document["path"] = steps_of(events)
        if logged["why"] is not None:
            document["log_state"] = logged["why"]["state"]
            now_ms = facts.now_ms if document["job"] is not None else None
            waits = [wait_row(each, now_ms) for each in logged["why"]["waits"]]
            document["waits"] = sorted([*waits, *logged["why"]["pauses"]], key=span_of)
    return document


def dead_page(facts: Facts) -> Document:
    """Return the document of the page with the latest dead jobs, and with the errors with which claims ended."""
    document: Document = {
        "queue": facts.asked.queue,
        "queues": [{"queue": q.queue, "dead": q.dead} for q in facts.queues if q.dead],
        "jobs": [], "notes": [],
    }  # fmt: skip
    if not isinstance(facts.found, Unread | None):
        for found in facts.found:
            document["jobs"] += [dead_row(each, facts.access) for each in found.rows]
            document["notes"] += [word(each) for each in (*found.notes, *found.unread)]
        document["jobs"].sort(key=lambda each: each["since_ms"] or 0, reverse=True)
    if not isinstance(facts.logged, Unread | None):
        errors = facts.logged["errors"]
        since_ms = facts.now_ms // MINUTE_MS * MINUTE_MS - 24 * HOUR_MS
        document["errors"] = error_rows((e for e in errors if e["outcome"] != "died"), since_ms)
        document["deaths"] = death_rows(facts.logged["deaths"], facts.now_ms)
    return document


def workers_page(facts: Facts) -> Document:
    """Return the document of the page with all workers. A worker of several queues appears once."""
    found = {each.worker: each for q in facts.queues for each in q.workers}
    rows = sorted(found.values(), key=lambda each: (each.gone, each.says.host, each.worker))
    present = [each for each in rows if not each.gone]
    return {
        "workers": [worker_row(each) for each in rows],
        "present": len(present),
        "busy": sum(each.says.busy for each in present),
        "places": sum(each.says.places for each in present),
        "codes": len({(each.says.version, each.says.code) for each in present}),
        "exact": all(q.workers_exact for q in facts.queues),
        "queues_without": [q.queue for q in facts.queues if not q.present],
    }


def log_page(facts: Facts) -> Document:
    """Return the document of the page with the latest events of all queues, or with a part of one queue's events. The
    newest event comes first."""
    asked, logged = facts.asked, facts.logged
    document: Document = {
        "queue": asked.queue, "queues": _log_queues(facts), "events": [], "older": None, "newer": None, "last": True,
    }  # fmt: skip
    if isinstance(logged, Unread | None):
        return document
    events = [event_row(each, facts.access) for each in logged["events"][-ROWS_MAX:]]
    document["events"] = events[::-1]
    document["last"] = not logged["newer"] and not asked.fixed
    if events:
        if logged["older"]:
            document["older"] = query("/log", queue=asked.queue, before=events[0]["place"])
        if logged["newer"]:
            document["newer"] = query("/log", queue=asked.queue, after=events[-1]["place"])
    return document


def at_page(facts: Facts) -> Document:
    """Return the document of the page with the queues as they were at a past moment."""
    at_ms = facts.asked.at_ms if facts.asked.at_ms is not None else facts.now_ms
    document: Document = {
        "at_ms": at_ms, "queue": facts.asked.queue, "queues": _log_queues(facts), "moments": [], "minutes": None,
    }  # fmt: skip
    if not isinstance(facts.logged, Unread | None):
        since = chart_begin(at_ms, facts.now_ms)
        document["minutes"] = count_minutes(facts.logged["minutes"], since, CHART_MINUTES)
        # Of one queue all that was read, of several the first few.
        most = ROWS_MAX if facts.asked.queue else FEW
        for name, moment in facts.logged["at"].items():
            document["moments"].append(
                {
                    "queue": name,
                    **moment,
                    "scopes": [
                        {"scope": scope, "cap": each["cap"], "holders": each["holders"]}
                        for scope, each in sorted(moment["scopes"].items())
                    ],
                    "running": [
                        each | {"path": job_path(name, each["job_id"])}
                        for each in moment["running"][:most]
                    ],
                    "running_count": len(moment["running"]),
                    "waiting": [
                        each | {"path": job_path(name, each["job_id"])}
                        for each in moment["waiting"][:most]
                    ],
                }
            )
        document["moments"].sort(key=lambda each: -each["running_count"] - each["waiting_count"])
    return document


def audit_page(facts: Facts) -> Document:
    """Return the document of the audit log's page: the number of its events, its missing parts, and its proofs."""
    document: Document = {"causes": [], "queues": [], "findings": None}
    rows = [cause_row(each) for each in facts.causes]
    document["causes"] = [each for each in rows if each["path"] == LOG_PATH]
    if isinstance(facts.log, LogOverview):
        behind = {q.queue: q for q in facts.queues}
        read = {} if isinstance(facts.logged, Unread | None) else facts.logged
        proofs = {each["queue"]: each for each in read.get("proofs", ())}
        for each in facts.log.queues:
            lacks = _proof_lacks(proofs.get(each.queue), each.events, facts.now_ms)
            proven = 0 if lacks == NOT_OF_LOG else each.proven_events or 0
            live = behind.get(each.queue)
            document["queues"].append(
                {
                    "queue": each.queue,
                    "events": each.events,
                    "last_at_ms": each.last_at_ms,
                    "waits": None if live is None else live.backlog,
                    "behind_ms": None if live is None else live.oldest_event_ms,
                    "gaps": each.gaps,
                    "quarantined": each.quarantined,
                    "losses": each.losses,
                    "orphaned_events": each.orphaned_events,
                    "proven_events": each.proven_events,
                    "proven_at_ms": each.proven_at_ms,
                    "proof_lacks": lacks,
                    "unproven_events": each.events - proven,
                }
            )
    document["unmirrored"] = [q.queue for q in facts.queues if not q.audit]
    if not isinstance(facts.logged, Unread | None):
        findings = dict(facts.logged)
        if not facts.access.see_arguments:
            # A reason may repeat what the entry has.
            findings["quarantine"] = [each | {"reason": None} for each in findings["quarantine"]]
        document["findings"] = findings
    return document


NOT_OF_LOG: Final = "it is not of this log"


def _proof_lacks(proof: Any, events: int, now_ms: int) -> str:
    """Return a phrase about what is wrong with the record of the audit log's last proof; empty if nothing is, or if
    there is no record.

    The record cannot be trusted, because a user who may write to the database can change it.
    """
    if proof is None:
        return ""
    if not proof["of_this_log"] or proof["events"] > events:
        return NOT_OF_LOG
    if proof["at_ms"] > now_ms + MINUTE_MS:
        return "its time is still to come"
    return "" if proof["verdict"] == "holds" else "in part: something could not be proved"


def _log_queues(facts: Facts) -> list[str]:
    return [each.queue for each in facts.log.queues] if isinstance(facts.log, LogOverview) else []
