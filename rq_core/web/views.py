"""The documents of the pages: pure functions of facts. Templates show them; the ``.json`` of a page is its document.

They compute nothing a second time: :mod:`rq_core.metrics.causes` says what is wrong, and :mod:`rq_core.views` and the
reader of the audit log say how a job or a scope is. What jobs carry (arguments, results, headers, messages of errors,
names of unique jobs) is left out here unless ``Access.see_arguments``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rq_core.metrics.alerts import ALERT_BY_NAME
from rq_core.metrics.causes import Cause, Unread, causes
from rq_core.model.job import JobError, place_in
from rq_core.model.plugins import LogOverview
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.table.machine import State
from rq_core.protocol.reads.queue_load import Overview, QueueOverview
from rq_core.views.job import ended_document, ended_rows, job_rows
from rq_core.views.jobs import job_document, listed_document, notes
from rq_core.views.queues import queue_document, queue_notes, worker_document
from rq_core.views.scopes import (
    holders_of,
    limit_of,
    scope_document,
    scope_notes,
    standing_document,
    waiting_of,
)
from rq_core.views.text import utc
from rq_core.web.tokens import Access
from rq_core.web.words import job_path, query, queue_path, word

if TYPE_CHECKING:
    from rq_core.model.state_line import JobState
    from rq_core.protocol.reads.worker_registry import PresentWorker
    from rq_core.views.jobs import ListedJob
    from rq_core.views.table import Found

MINUTE_MS: Final = 60_000
SPARK_MINUTES: Final = 60
"""Minutes of the small chart of a queue; the large ones have twice as many."""
CHART_MINUTES: Final = 120
SOON_MS: Final = 100
"""A claim that comes so soon is no wait for a worker."""
ROWS_MAX: Final = 100
"""Rows of a list."""
FEW: Final = 10
"""The same where a page has a list for each queue."""
CARRIED: Final = frozenset(
    {"args", "arguments", "error", "headers", "result", "spec", "unique_name", "value"}
)
"""Names of what a job carries, in documents, rows and events: shown only to viewers who may see arguments."""
_TOLD: Final = (
    frozenset(
        {"why", "under", "scopes"}
        | {field.name for fields in JOB_EVENT_FIELDS.values() for field in fields}
        | {
            str(getattr(field, "name", field))
            for fields in QUEUE_EVENT_FIELDS.values()
            for field in fields
        }
    )
    - CARRIED
)
"""Other names in events. A name that is missing here may have any value."""
_WHY_ROWS: Final = frozenset(
    {"waits for", "cap", "rate", "resumes", "held by", "", "ahead", "given back", "to do", "due"}
)
"""Rows of a job that say why it does not run."""
_A_MOMENT_MS: Final = 1_000_000_000_000
"""A larger number is a moment, and no length of time."""
_FAILED: Final = frozenset({"died", "retried", "lease_expired"})

Document = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """The wishes in an address."""

    queue: str | None = None
    job_id: str = ""
    states: tuple[State, ...] = ()
    task: str | None = None
    at_ms: int | None = None


@dataclass(frozen=True)
class Facts:
    """The facts of a page."""

    asked: Asked
    access: Access
    now_ms: int
    state: Overview | Unread
    log: LogOverview | Unread | None
    """None: the page has no log."""
    found: Any = None
    """The answer of Redis to the page's plan; Unread if it gave none."""
    logged: Any = None
    """The answer of the audit log; Unread if it gave none."""

    @property
    def queues(self) -> tuple[QueueOverview, ...]:
        """The queues that could be read."""
        return () if isinstance(self.state, Unread) else self.state.queues

    @property
    def queue(self) -> QueueOverview | None:
        """The queue that is asked for; None if Redis does not have it, or cannot be read."""
        return next((each for each in self.queues if each.queue == self.asked.queue), None)


# What every page has.


def frame(facts: Facts) -> Document:
    """Return the part that each page has: the sources that cannot be read, and the number of causes."""
    wrong = causes(facts.state, facts.log)
    parts = {
        "Redis": facts.state, "the audit log": facts.log, "this page": facts.found, "the past": facts.logged,
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
    }


_PAGE_OF: Final[Mapping[str, tuple[str, str]]] = {
    "RqCoreNoWorker": ("/workers", ""),
    "RqCoreCodeSkew": ("/workers", ""),
    "RqCoreNoClaims": ("/jobs", "scheduled"),
    "RqCoreTaskUnknown": ("/jobs", "scheduled"),
    "RqCoreLeasesOver": ("/jobs", "running,cancelling"),
    "RqCoreJobsWait": ("/jobs", "ready"),
    "RqCoreJobsDie": ("/dead", ""),
    "RqCoreMirrorBehind": ("/audit", ""),
    "RqCoreBacklogHalf": ("/audit", ""),
    "RqCoreAuditDown": ("/audit", ""),
}
"""The page that shows more of a cause, and the states of its jobs, by the alert; by default, the queue's page."""


def _cause(each: Cause) -> Document:
    alert = ALERT_BY_NAME[each.alert]
    return {
        "alert": each.alert,
        "queue": each.queue,
        "says": word(each.says, 500),
        "pages": each.pages,
        "path": _path_of(each),
        "means": alert.summary,
        "look": [_command(line, each.queue) for line in alert.look],
        "do": alert.do,
    }


def _path_of(cause: Cause) -> str:
    """Return the address of the page that shows more of a cause; empty: no page does."""
    if cause.alert in _PAGE_OF:
        page, states = _PAGE_OF[cause.alert]
        return query(page, queue=cause.queue if page in ("/jobs", "/dead") else None, state=states)
    if cause.queue is None:
        return ""
    return queue_path(cause.queue) + ("#limits" if cause.alert == "RqCoreScopeFull" else "")


def _command(line: str, queue: str | None) -> str:
    return line if queue is None else line.replace("QUEUE", queue)


# Pages.


def overview(facts: Facts) -> Document:
    """Return the causes, then the queues."""
    found = facts.state
    document: Document = {
        "causes": [_cause(each) for each in causes(found, facts.log)],
        "queues": [],
        "notes": [],
    }
    if isinstance(found, Unread):
        return document
    workers = {each.worker: each.says for queue in found.queues for each in queue.present}
    totals = ("ready_jobs", "running", "scheduled", "dead")
    document["totals"] = {
        **{name: sum(getattr(queue, name) for queue in found.queues) for name in totals},
        "queues": len(found.queues),
        "workers": len(workers),
        "busy": sum(each.busy for each in workers.values()),
        "places": sum(each.places for each in workers.values()),
        "used_memory": found.used_memory,
    }
    minutes = _by_queue(facts.logged)
    since = _first_minute(facts.now_ms, SPARK_MINUTES)
    wrong = {each["queue"] for each in document["causes"]}
    for queue in found.queues:
        row = _queue(queue, facts.now_ms)
        row["wrong"] = queue.queue in wrong
        rows = minutes.get(queue.queue)
        if minutes or isinstance(facts.logged, list):
            row["minutes"] = _minutes(rows or (), since, SPARK_MINUTES)
        document["queues"].append(row)
    document["notes"] = _denied(found)
    return document


def _denied(found: Overview) -> list[str]:
    if not found.denied:
        return []
    return [f"not looked at, since this user may not read them: {', '.join(found.denied)}"]


def queue(facts: Facts) -> Document:
    """One queue: its flow, its limits, its workers and its settings."""
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
        document["queue"] = _queue(found, facts.now_ms)
        document["workers"] = [_worker(each) for each in found.workers]
    document["causes"] = [
        _cause(each) for each in causes(facts.state, facts.log) if each.queue == name
    ]
    if not isinstance(facts.found, Unread | None):
        limits: Found[Any] = facts.found
        document["limits"] = [
            scope_document(each)
            | {
                "limit_says": limit_of(each),
                "holders_says": str(holders_of(each)),
                "waiting_says": waiting_of(each),
                "notes": scope_notes(each, facts.now_ms),
            }
            for each in limits.rows
        ]
        document["notes"] = [*limits.notes]
    if not isinstance(facts.logged, Unread | None):
        since = _first_minute(facts.now_ms, CHART_MINUTES)
        document["minutes"] = _minutes(facts.logged["minutes"], since, CHART_MINUTES)
        document["errors"] = _errors(facts.logged["errors"])
    return document


def jobs(facts: Facts) -> Document:
    """Jobs of a queue that are in Redis."""
    asked, found = facts.asked, facts.found
    document: Document = {
        "queue": asked.queue,
        "states": [str(each) for each in asked.states],
        "task": asked.task,
        "queues": [{"queue": q.queue, "counts": _counts(q)} for q in facts.queues],
        "jobs": [],
        "notes": [],
        "empty": "",
    }
    if not isinstance(found, Unread | None):
        document["jobs"] = [_listed(row, facts) for row in found.rows]
        document["notes"] = [word(each) for each in (*found.notes, *found.unread)]
        document["empty"] = found.empty
    return document


def job(facts: Facts) -> Document:
    """One job: its state, why it does not run now, what it waited for, and what happened to it."""
    asked, found, logged = facts.asked, facts.found, facts.logged
    document: Document = {
        "id": asked.job_id, "queue": asked.queue, "job": None, "facts": [], "why": [], "ended": None,
        "events": [], "path": [], "waits": [], "notes": [],
    }  # fmt: skip
    if isinstance(found, tuple) and found[0] == "live":
        _, row, standing = found
        rows = job_rows(row, standing, facts.now_ms)
        document["job"] = _listed(row, facts) | standing_document(standing)
        document["facts"] = _shown(rows[3:], facts.access, without=_WHY_ROWS)
        if row.job.error is not None:
            document["facts"] = [
                [n, _error_says(row.job.error, facts.access) if n == "error" else text]
                for n, text in document["facts"]
            ]
        document["why"] = [[n, word(text, 500)] for n, text in rows if n in _WHY_ROWS]
        if facts.access.see_arguments and row.job.error is not None:
            document["traceback"] = row.job.error.traceback
    elif isinstance(found, tuple) and found[0] == "ended":
        _, queue_name, result, value = found
        document["facts"] = _shown(
            ended_rows(queue_name, result, value, facts.now_ms)[2:], facts.access
        )
        document["ended"] = _without_carried(
            ended_document(queue_name, result, value), facts.access
        )
    if not isinstance(logged, Unread | None):
        events = [_event(each, facts.access) for each in logged["history"]["events"]]
        document["events"] = events
        document["notes"] = [word(each) for each in logged["history"]["notes"]]
        document["path"] = _path(events)
        if logged["why"] is not None:
            document["log_state"] = logged["why"]["state"]
            waits = [_wait(each) for each in logged["why"]["waits"]]
            document["waits"] = sorted([*waits, *logged["why"]["pauses"]], key=_since)
    return document


def dead(facts: Facts) -> Document:
    """The jobs that died last, and which errors claims ended with."""
    document: Document = {
        "queue": facts.asked.queue,
        "queues": [{"queue": q.queue, "dead": q.dead} for q in facts.queues if q.dead],
        "jobs": [], "notes": [],
    }  # fmt: skip
    if not isinstance(facts.found, Unread | None):
        for found in facts.found:
            document["jobs"] += [_dead(each, facts.access) for each in found.rows]
            document["notes"] += [word(each) for each in (*found.notes, *found.unread)]
        document["jobs"].sort(key=lambda each: each["since_ms"] or 0, reverse=True)
    if not isinstance(facts.logged, Unread | None):
        document["errors"] = _errors(facts.logged)
    return document


def workers(facts: Facts) -> Document:
    """All workers, each once."""
    found = {each.worker: each for q in facts.queues for each in q.workers}
    rows = sorted(found.values(), key=lambda each: (each.gone, each.says.host, each.worker))
    present = [each for each in rows if not each.gone]
    return {
        "workers": [_worker(each) for each in rows],
        "present": len(present),
        "busy": sum(each.says.busy for each in present),
        "places": sum(each.says.places for each in present),
        "codes": len({(each.says.version, each.says.code) for each in present}),
        "exact": all(q.workers_exact for q in facts.queues),
        "queues_without": [q.queue for q in facts.queues if not q.present],
    }


def log(facts: Facts) -> Document:
    """The last events."""
    document: Document = {"queue": facts.asked.queue, "queues": _log_queues(facts), "events": []}
    if not isinstance(facts.logged, Unread | None):
        last = facts.logged[-ROWS_MAX:]
        document["events"] = [_event(each, facts.access) for each in reversed(last)]
    return document


def at(facts: Facts) -> Document:
    """How queues stood at a moment."""
    at_ms = facts.asked.at_ms if facts.asked.at_ms is not None else facts.now_ms
    document: Document = {
        "at_ms": at_ms, "queue": facts.asked.queue, "queues": _log_queues(facts), "moments": [], "minutes": None,
    }  # fmt: skip
    if not isinstance(facts.logged, Unread | None):
        since = _chart_begin(at_ms, facts.now_ms)
        document["minutes"] = _minutes(facts.logged["minutes"], since, CHART_MINUTES)
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


def audit(facts: Facts) -> Document:
    """How far the log goes, what is missing from it, and what is proven."""
    document: Document = {"queues": [], "findings": None}
    if isinstance(facts.log, LogOverview):
        behind = {q.queue: q for q in facts.queues}
        for each in facts.log.queues:
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
                    "unproven_events": each.events - (each.proven_events or 0),
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


# Rows.


def _queue(found: QueueOverview, now_ms: int) -> Document:
    document = queue_document(found)
    document.pop("workers")
    return document | {
        "ready_jobs": found.ready_jobs,
        "counts": _counts(found),
        "present": len(found.present),
        "busy": sum(each.says.busy for each in found.present),
        "places": sum(each.says.places for each in found.present),
        "full": [each.scope for each in found.full_scopes],
        "notes": word(queue_notes(found, now_ms), 600),
        "path": queue_path(found.queue),
    }


def _counts(found: QueueOverview) -> dict[str, int]:
    return {
        "ready": found.ready_jobs,
        "running": found.running,
        "scheduled": found.scheduled,
        "dead": found.dead,
    }


def _worker(found: PresentWorker) -> Document:
    return worker_document(found) | {
        "paths": [[each, query("/jobs", queue=each, state="running")] for each in found.says.queues]
    }


def _listed(row: ListedJob, facts: Facts) -> Document:
    document = _without_carried(listed_document(row), facts.access)
    if not facts.access.see_arguments:
        # A line has names of unique jobs, which are made of arguments.
        document.pop("line", None)
    return document | {
        "notes": word(notes(row, facts.now_ms)),
        "path": job_path(row.job.queue, row.job.id),
    }


def _dead(found: JobState, access: Access) -> Document:
    document = _without_carried(job_document(found), access)
    if not access.see_arguments:
        document.pop("line", None)
    error = found.error
    return document | {
        "error": _error(error, access),
        "died_of": "" if error is None else _error_says(error, access),
        "path": job_path(found.queue, found.id),
    }


def _without_carried(document: Mapping[str, Any], access: Access) -> Document:
    """A document without what its job carries, for those who may not see it."""
    if access.see_arguments:
        return dict(document)
    left = {name: value for name, value in document.items() if name not in CARRIED}
    if document.get("error"):
        left["error"] = {"type": document["error"].get("type")}
    return left


def _error(error: JobError | None, access: Access) -> Document | None:
    if error is None:
        return None
    return error._asdict() if access.see_arguments else {"type": error.type}


def _error_says(error: JobError, access: Access) -> str:
    if not access.see_arguments:
        return f"{word(error.type)} (its message is hidden)"
    place = place_in(error.traceback)
    return word(error) + (f" ({word(place)})" if place else "")


def _shown(
    rows: Iterable[tuple[str, str]], access: Access, without: frozenset[str] = frozenset()
) -> list[list[str]]:
    """Return rows of name and text. A viewer who may not see what a job carries gets the word hidden."""
    shown = []
    for name, text in rows:
        if name in without:
            continue
        hidden = name in CARRIED and not access.see_arguments
        shown.append([name, "hidden" if hidden else word(text, 2_000)])
    return shown


def _event(found: Mapping[str, Any], access: Access) -> Document:
    detail, hidden = {}, []
    for name, value in found["detail"].items():
        if access.see_arguments or name in _TOLD:
            detail[name] = value
        elif name == "error" and isinstance(value, dict):
            detail[name] = {"type": value.get("type")}
        elif value is not None:
            hidden.append(name)
    queue_name, job_id = found["queue"], found["job_id"]
    return {
        **{
            name: found[name]
            for name in ("queue", "type", "at_ms", "job_id", "claim", "worker", "task")
        },
        "number": f"{found['epoch']}-{found['seq']}",
        "orphaned": found.get("orphaned", False),
        "detail": detail,
        "hidden": hidden,
        "says": [_said(name, value) for name, value in detail.items() if _tells(name, value)],
        "path": job_path(queue_name, job_id) if job_id else "",
        "moment": query("/at", t=found["at_ms"], queue=queue_name),
    }


_PLUMBING: Final = frozenset({"seq", "fence", "digest", "max_attempts", "max_losses"})
"""Fields of an event that its document has, and its line on a page has not."""


def _tells(name: str, value: Any) -> bool:
    return value is not None and name not in _PLUMBING and (name, value) != ("priority", "normal")


def _said(name: str, value: Any) -> list[str]:
    if name.endswith("_ms") and isinstance(value, int) and value > _A_MOMENT_MS:
        return [name.removesuffix("_ms"), utc(value)]
    return [name, _value(value)]


def _value(value: Any) -> str:
    """A value of an event on one line; of an error its type, message and place; of scopes their limits."""
    if isinstance(value, dict) and "type" in value:
        place = place_in(str(value.get("traceback") or ""))
        message = f": {value['message']}" if value.get("message") else ""
        return word(f"{value['type']}{message}") + (f" ({word(place)})" if place else "")
    if isinstance(value, list) and value and all(isinstance(each, list) and each for each in value):
        return word(", ".join(_scope(each) for each in value))
    return word(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )


def _scope(said: Sequence[Any]) -> str:
    scope, *limit = said
    if len(limit) == 3 and isinstance(limit[1], int):
        return f"{scope} ≤ {limit[0]} per {limit[1] / 1000:g} s"
    most = limit[0] if limit else None
    words = "any" if most is None else str(most)
    return f"{scope} ≤ {words}"


def _path(events: Sequence[Mapping[str, Any]]) -> list[Document]:
    """The steps of a job, and how long after the one before each came."""
    steps: list[Document] = []
    for each in events:
        after = each["at_ms"] - steps[-1]["at_ms"] if steps else None
        steps.append(
            {"type": each["type"], "at_ms": each["at_ms"], "after_ms": after, "by": each["worker"]}
        )
    return steps


def _since(period: Mapping[str, Any]) -> int:
    return int(period["since_ms"])


def _wait(found: Mapping[str, Any]) -> Document:
    waited_ms = found["until_ms"] - found["since_ms"]
    if found["held_back_by"]:
        says = f"held back by {found['held_back_by']}"
    elif found["claim"] is not None and waited_ms < SOON_MS:
        says = "nothing held it back"
    else:
        says = "no cap held it back: no worker was free, or the queue was paused"
    return {**found, "waited_ms": waited_ms, "says": says}


def _errors(rows: Iterable[Mapping[str, Any]]) -> list[Document]:
    return [dict(row) | {"path": query("/dead", queue=row["queue"])} for row in rows]


def _log_queues(facts: Facts) -> list[str]:
    return [each.queue for each in facts.log.queues] if isinstance(facts.log, LogOverview) else []


# Minutes.


def _first_minute(now_ms: int, many: int) -> int:
    return (now_ms // MINUTE_MS - many + 1) * MINUTE_MS


def _chart_begin(at_ms: int, now_ms: int) -> int:
    """The first minute of a chart that has the moment in it, and ends with this minute at the latest."""
    latest = _first_minute(now_ms, CHART_MINUTES)
    return max(0, min(latest, (at_ms // MINUTE_MS - CHART_MINUTES // 2) * MINUTE_MS))


def chart_begin(asked: Asked, now_ms: int) -> int:
    """The first minute of the chart that the page of a moment shows."""
    return _chart_begin(now_ms if asked.at_ms is None else asked.at_ms, now_ms)


def _by_queue(rows: Any) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows if isinstance(rows, list) else ():
        found.setdefault(row["queue"], []).append(row)
    return found


def _minutes(rows: Iterable[Mapping[str, Any]], since_ms: int, many: int) -> Document:
    """Count the claims that ended well, badly, or otherwise in each of the minutes."""
    done, failed, other = [0] * many, [0] * many, [0] * many
    for row in rows:
        place = (row["minute_ms"] - since_ms) // MINUTE_MS
        if 0 <= place < many:
            outcome = row["outcome"]
            kind = done if outcome == "succeeded" else failed if outcome in _FAILED else other
            kind[place] += row["claims"]
    return {"since_ms": since_ms, "done": done, "failed": failed, "other": other}
