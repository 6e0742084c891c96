"""Makes the table rows in the documents of the web pages: problems, queues, workers, jobs and events.

The contents of a job, such as its arguments and result, are left out unless the viewer may see them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rq_core.metrics.alerts import ALERT_BY_NAME
from rq_core.metrics.causes import Cause
from rq_core.model.durable.children import parent_of
from rq_core.model.durable.forks import origin_of
from rq_core.model.filters.filter_text import text_of
from rq_core.model.headers import read_headers
from rq_core.model.job import JobError, place_in, read_spec
from rq_core.model.keys import is_name
from rq_core.model.limits.pauses import cause_says
from rq_core.model.showing.shown import TEXT_MAX
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.table.machine import Event
from rq_core.protocol.reads.queue_load import QueueOverview
from rq_core.views.jobs import job_document, listed_document, notes
from rq_core.views.queues import queue_document, queue_notes, worker_document
from rq_core.views.shown import progress_document
from rq_core.views.text import utc
from rq_core.web.minutes import count_hours
from rq_core.web.tokens import Access
from rq_core.web.words import iso, job_path, query, queue_path, word

if TYPE_CHECKING:
    from rq_core.model.showing.shown import Progress
    from rq_core.model.state_line import JobState
    from rq_core.protocol.reads.worker_registry import PresentWorker
    from rq_core.views.jobs import ListedJob

SOON_MS: Final = 100
"""A job that is claimed after fewer milliseconds than this did not have to wait for a worker."""
CARRIED: Final = frozenset(
    {"args", "arguments", "error", "headers", "key", "pack", "result", "spec", "unique_name"}
    | {"value"}
)
"""Names of fields in documents, rows and events that have contents of jobs, such as arguments. Only viewers who may see
arguments see their values."""
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
"""Names of event fields whose values every viewer may see. Other fields may have contents of a job."""
_OF_STEPS: Final = (Event.STEP_BEGUN, Event.STEP_SAVED)
"""The events whose field ``name`` has the name of a step, with the step's key."""
ERROR_MAX: Final = 300
"""Maximum number of characters of an error's type in a search."""
_A_MOMENT_MS: Final = 1_000_000_000_000
"""A number of milliseconds above this value is a time (Unix ms), and below it a duration."""

Document = dict[str, Any]

LOG_PATH: Final = "/audit"
_PAGE_OF: Final[Mapping[str, tuple[str, str]]] = {
    "RqCoreNoWorker": ("/workers", ""),
    "RqCoreCodeSkew": ("/workers", ""),
    "RqCoreNoClaims": ("/jobs", "scheduled"),
    "RqCoreTaskUnknown": ("/jobs", "scheduled"),
    "RqCoreLeasesOver": ("/jobs", "running,cancelling"),
    "RqCoreJobsWait": ("/jobs", "ready"),
    "RqCoreJobsDie": ("/dead", ""),
    "RqCoreScheduleLate": ("/schedules", ""),
    "RqCoreMirrorBehind": (LOG_PATH, ""),
    "RqCoreBacklogHalf": (LOG_PATH, ""),
    "RqCoreAuditDown": (LOG_PATH, ""),
}
"""Alert → the page that shows more about its cause, and the states of jobs that this page lists. For other alerts, the
queue's page shows more."""


def cause_row(each: Cause) -> Document:
    """Return the table row of a current problem, with its remedy."""
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


def urgency(row: Document) -> str:
    """Return the CSS class of a problem's row: ``now`` if it is urgent, else ``later``."""
    return "now" if row["pages"] else "later"


def _path_of(cause: Cause) -> str:
    """Return the address of the page that shows more about a current problem; empty if no page does."""
    if cause.alert in _PAGE_OF:
        page, states = _PAGE_OF[cause.alert]
        return query(
            page,
            queue=cause.queue if page in ("/jobs", "/dead", "/schedules") else None,
            state=states,
        )
    if cause.queue is None:
        return ""
    return queue_path(cause.queue) + (
        "#limits" if cause.alert in ("RqCoreScopeFull", "RqCoreScopePaused") else ""
    )


def _command(line: str, queue: str | None) -> str:
    return line if queue is None else line.replace("QUEUE", queue)


def queue_row(found: QueueOverview, now_ms: int) -> Document:
    """Return the table row of a queue."""
    document = queue_document(found)
    document.pop("workers")
    return document | {
        "ready_jobs": found.ready_jobs,
        "counts": state_counts(found),
        "present": len(found.present),
        "busy": sum(each.says.busy for each in found.present),
        "places": sum(each.says.places for each in found.present),
        "full": [each.scope for each in found.full_scopes],
        "schedules": found.schedules,
        "notes": word(queue_notes(found, now_ms), 600),
        "path": queue_path(found.queue),
    }


def state_counts(found: QueueOverview) -> dict[str, int]:
    """Return state → number of jobs in a queue, for the states ready, running, scheduled, parked and dead."""
    return {
        "ready": found.ready_jobs,
        "running": found.running,
        "scheduled": found.scheduled,
        "parked": found.parked,
        "dead": found.dead,
    }


def worker_row(found: PresentWorker) -> Document:
    """Return the table row of a worker."""
    return worker_document(found) | {
        "paths": [
            [each, query("/jobs", queue=each, state="running,cancelling", worker=found.worker)]
            for each in found.says.queues
        ]
    }


def listed_row(row: ListedJob, access: Access, now_ms: int) -> Document:
    """Return the table row of a job in a list."""
    document = without_carried(listed_document(row), access)
    if not access.see_arguments:
        # A line has names of unique jobs, which are made of arguments.
        document.pop("line", None)
    return document | {
        "notes": word(notes(row, now_ms)),
        "path": job_path(row.job.queue, row.job.id),
    }


def comes_from(job: JobState) -> list[Document]:
    """Return the jobs from which a job comes, each with its address: the parent of a child, and the origin of a fork (a
    copy that runs from a step on)."""
    found: list[Document] = []
    try:
        text = read_spec(job.spec or "").headers_json
        headers = read_headers(text) if text else {}
    except (ValueError, RecursionError):
        return found
    if (parent := parent_of(headers, job.id)) is not None:
        path = job_path(parent.queue, parent.id)
        found.append({"says": "child of", "id": parent.id, "path": path})
    if (origin := origin_of(headers)) is not None:
        path = job_path(job.queue, origin.job_id)
        found.append({"says": "fork of", "id": origin.job_id, "path": path})
    return found


def dead_row(found: JobState, access: Access) -> Document:
    """Return the table row of a dead job."""
    document = without_carried(job_document(found), access)
    if not access.see_arguments:
        document.pop("line", None)
    error = found.error
    return document | {
        "error": _error(error, access),
        "died_of": "" if error is None else error_says(error, access),
        "path": job_path(found.queue, found.id),
    }


def without_carried(document: Mapping[str, Any], access: Access) -> Document:
    """Return a document (dict) without the contents of its job, such as arguments, unless the viewer may see them."""
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


def error_says(error: JobError, access: Access) -> str:
    """Return an error as one line. Its message is left out unless the viewer may see the contents of jobs."""
    if not access.see_arguments:
        return f"{word(error.type)} (its message is hidden)"
    place = place_in(error.traceback)
    return word(error) + (f" ({word(place)})" if place else "")


def shown_rows(
    rows: Iterable[tuple[str, str]], access: Access, without: frozenset[str] = frozenset()
) -> list[list[str]]:
    """Return [name, text] rows. Names in ``without`` are left out. Contents of a job that the viewer may not see become
    ``hidden``."""
    shown = []
    for name, text in rows:
        if name in without:
            continue
        hidden = name in CARRIED and not access.see_arguments
        shown.append([name, "hidden" if hidden else word(text, 2_000)])
    return shown


def event_row(found: Mapping[str, Any], access: Access) -> Document:
    """Return the table row of an event."""
    detail: Document = {}
    hidden: list[str] = []
    for name, value in found["detail"].items():
        if not access.see_arguments and name == "name" and found["type"] in _OF_STEPS:
            detail[name] = without_key(str(value))
        elif access.see_arguments or name in _TOLD:
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
        "place": f"{found['epoch']}-{found['seq']}-{found['ordinal']}",
        "orphaned": found.get("orphaned", False),
        "detail": detail,
        "hidden": hidden,
        "says": [_said(name, value) for name, value in detail.items() if _tells(name, value)],
        "path": job_path(queue_name, job_id) if job_id else "",
        "moment": query("/at", t=found["at_ms"], queue=queue_name),
    }


_PLUMBING: Final = frozenset({"seq", "fence", "digest", "job_digest", "max_attempts", "max_losses"})
"""Fields of an event that its document has, but that its line on a page leaves out."""


def _tells(name: str, value: Any) -> bool:
    return value is not None and name not in _PLUMBING and (name, value) != ("priority", "normal")


def _said(name: str, value: Any) -> list[str]:
    if name.endswith("_ms") and isinstance(value, int) and value > _A_MOMENT_MS:
        return [name.removesuffix("_ms"), utc(value)]
    return [name, _value(value)]


def _value(value: Any) -> str:
    """Return the value of an event's field as one line.

    An error becomes its type, message and place in the code. Scopes are shown with their limits.
    """
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


def without_key(step: str) -> str:
    """Return a step's name without its key, because the key may contain arguments of the job."""
    return step.partition("=")[0]


def step_shown(step: Mapping[str, Any], access: Access) -> Document:
    """Return a step of a durable job for the page. Its key is left out unless the viewer may see arguments."""
    name = str(step["name"])
    if not access.see_arguments:
        name = without_key(name)
    return {**step, "name": word(name), "note": word(step["note"] or "")}


def progress_shown(progress: Progress | None, access: Access) -> Document | None:
    """Return a job's progress for the page. Its text is hidden unless the viewer may see arguments."""
    document = progress_document(progress)
    if document is None:
        return None
    text = word(document["text"], TEXT_MAX) if access.see_arguments else "hidden"
    return {**document, "text": text if document["text"] else ""}


def signal_shown(signal: Mapping[str, Any], access: Access) -> Document:
    """Return a signal that no wait has taken, for the page. Its key is hidden unless the viewer may see arguments."""
    key = word(signal["key"] or "") if access.see_arguments else "hidden"
    return {**signal, "name": word(signal["name"]), "key": key if signal["key"] else ""}


def steps_of(events: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Return for each event of a job its type, time, worker, and the milliseconds since the previous event."""
    steps: list[Document] = []
    for each in events:
        after = each["at_ms"] - steps[-1]["at_ms"] if steps else None
        steps.append(
            {"type": each["type"], "at_ms": each["at_ms"], "after_ms": after, "by": each["worker"]}
        )
    return steps


def span_of(period: Mapping[str, Any]) -> tuple[float, float]:
    """Return the beginning and the end (Unix ms) of a wait or a pause, as a sort key. Of two that begin at the same
    time, the shorter one comes first."""
    until_ms = period["until_ms"]
    return period["since_ms"], math.inf if until_ms is None else until_ms


def wait_row(found: Mapping[str, Any], now_ms: int | None) -> Document:
    """Return the table row of a job's wait for a claim, with the reason for it.

    ``now_ms``: the present time (Unix ms) if Redis has the job, else None. A wait that still goes on is counted up to
    ``now_ms``; without ``now_ms``, up to the job's last event in the log.
    """
    still = found["claim"] is None and not found["ended"]
    until_ms = now_ms if still and now_ms is not None else found["until_ms"]
    waited_ms = max(0, until_ms - found["since_ms"])
    if found["held_back_by"]:
        says = f"held back by {found['held_back_by']}"
    elif found["claim"] is not None and waited_ms < SOON_MS:
        says = "nothing held it back"
    else:
        says = "no cap held it back: no worker was free, or the queue was paused"
    paused = [
        word(f"{each['scope']} was paused {cause_says(each)}", 500) for each in found["pauses"]
    ]
    return {**found, "waited_ms": waited_ms, "still": still, "says": says, "paused_says": paused}


def error_rows(rows: Iterable[Mapping[str, Any]], since_ms: int) -> list[Document]:
    """Return the table rows of errors. Each links to the claims that ended with this error since ``since_ms`` (Unix
    ms)."""
    return [dict(row) | {"path": _ended_path(row, row["outcome"], since_ms)} for row in rows]


def death_rows(rows: Iterable[Mapping[str, Any]], now_ms: int) -> list[Document]:
    """Return the table rows of deaths of jobs, one for each queue, task and error, the most frequent first.

    Each row has the deaths per hour, and a link to the claims that ended in them.
    """
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["queue"], row["task"], row["error_type"]), []).append(row)
    found = []
    for (queue_name, task, error_type), group in grouped.items():
        hours = count_hours({row["hour_ms"]: row["deaths"] for row in group}, now_ms)
        found.append(
            {
                "queue": queue_name, "task": task, "error_type": error_type,
                "deaths": sum(row["deaths"] for row in group),
                "last_ms": max(row["last_ms"] for row in group),
                "hours": hours,
                "path": _ended_path(group[0], "died", hours["since_ms"]),
                "requeue": _many_path("requeue", group[0], hours["since_ms"]),
                "copies": _many_path("copy", group[0], hours["since_ms"]),
            }
        )  # fmt: skip
    return sorted(found, key=lambda each: (-each["deaths"], each["queue"], each["task"]))


def _many_path(verb: str, row: Mapping[str, Any], since_ms: int) -> str:
    """Return the address of the page that requeues or copies (``verb``) the jobs that died of an error since
    ``since_ms`` (Unix ms); empty if a filter cannot express them."""
    task, error = row["task"], row["error_type"]
    if not (task and is_name(task) and error and len(error) <= ERROR_MAX):
        return ""
    since = iso(since_ms)[:16] + "Z"
    terms = [("queue", row["queue"]), ("task", task), ("error", error), ("since", since)]
    return query("/bulk", verb=verb, where=text_of(terms))


def _ended_path(row: Mapping[str, Any], outcome: str, since_ms: int) -> str:
    """Return the address of a search for the claims that ended with this outcome and error since ``since_ms`` (Unix
    ms).

    A task or an error that a search cannot express is left out.
    """
    task, error = row["task"], row["error_type"]
    return query(
        "/jobs", queue=row["queue"], outcome=outcome, task=task if is_name(task) else "",
        error=error if len(error) <= ERROR_MAX else "", since=iso(since_ms)[:16] + "Z",
    )  # fmt: skip
