"""Makes the documents (dicts) of the page /schedules, and of one schedule's page: its rule, its next instants and its
last instants."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from rq_core.errors import RqCoreError
from rq_core.metrics.causes import Unread
from rq_core.model.recurrence import Recurrence, from_json
from rq_core.views.schedules import ScheduleRow, next_due, schedule_document, schedule_notes, when
from rq_core.views.table import Found
from rq_core.views.text import span, utc
from rq_core.web.rows import Document, cause_row
from rq_core.web.views import Facts
from rq_core.web.words import job_path, query, schedule_path, word

LATE_ALERT: Final = "RqCoreScheduleLate"
NEXT: Final = 5
"""Number of future instants that a page shows."""
LATE_MS: Final = 60_000
"""Milliseconds after its due time from which an instant counts as late. The alert has the same limit."""


def schedules_page(facts: Facts) -> Document:
    """Return the document of the page with all schedules, ordered by due time."""
    document: Document = {"queue": facts.asked.queue, "queues": [], "schedules": [], "notes": []}
    if isinstance(facts.found, Unread | None):
        return document
    found: Found[ScheduleRow] = facts.found
    told = _last_by_name(facts.logged)
    rows = [_row(each, facts.now_ms) for each in found.rows]
    for row in rows:
        row["last_tick"] = told.get((row["queue"], row["name"]))
    rows.sort(
        key=lambda each: (each["due_ms"] is None, each["due_ms"] or 0, each["queue"], each["name"])
    )
    document["schedules"] = rows
    document["queues"] = sorted({each["queue"] for each in rows})
    document["notes"] = [word(each) for each in found.unread]
    return document


def schedule_page(facts: Facts) -> Document:
    """Return the document of one schedule's page."""
    queue, name = facts.asked.queue or "", facts.asked.name
    document: Document = {
        "queue": queue, "name": name, "schedule": None, "definition": [], "next": [], "ticks": [], "changes": [],
        "says": "", "pruned_to_ms": None, "causes": [], "notes": [],
    }  # fmt: skip
    if not isinstance(facts.found, Unread | None):
        stored = next((each for each in facts.found.rows if each.name == name), None)
        damaged = [each for each in facts.found.unread if f"schedule {name} of" in each]
        document["notes"] = [word(each) for each in damaged]
        if stored is not None:
            document["schedule"] = _row(stored, facts.now_ms)
            document["definition"] = _definition(stored)
            document["next"] = _next(stored)
            # The cause names the schedule that is the latest of its queue.
            late = None if facts.queue is None else facts.queue.late_schedule
            if late is not None and late.name == name:
                document["causes"] = [
                    cause_row(each)
                    for each in facts.causes
                    if each.queue == queue and each.alert == LATE_ALERT
                ]
    if not isinstance(facts.logged, Unread | None):
        ticks = reversed(facts.logged["ticks"])
        document["ticks"] = [tick_row(queue, each) for each in ticks]
        document["changes"] = [*reversed(facts.logged["changes"])]
        document["says"] = word(facts.logged["says"])
        pruned = facts.logged["pruned"]
        document["pruned_to_ms"] = None if pruned is None else pruned["cut_at_ms"]
    return document


def tick_row(queue: str, found: Mapping[str, Any]) -> Document:
    """Return the table row of a past instant. It links to the instant's job, and to the state of the queue at the due
    time."""
    late = (found["late_ms"] or 0) > LATE_MS and found["outcome"] not in ("run", "not_run")
    return {
        **found,
        "late": late,
        "path": job_path(queue, found["job_id"]) if found["job_id"] else "",
        "then": query("/at", t=found["due_ms"], queue=queue),
    }


def _row(found: ScheduleRow, now_ms: int) -> Document:
    document = schedule_document(found)
    due_ms = document["due_ms"]
    return document | {
        "when": word(when(found)),
        "next_says": next_due(found, now_ms),
        "late": due_ms is not None and now_ms - due_ms > LATE_MS,
        "notes": word(schedule_notes(found, now_ms)),
        "path": schedule_path(found.queue, found.name),
    }


def _definition(found: ScheduleRow) -> list[list[str]]:
    """Return [name, text] rows that describe a schedule."""
    stored = found.schedule
    rows = [["state", stored.state], ["when", when(found)]]
    said = schedule_document(found)["rule"]
    for name, value in said.items():
        if name in ("cron", "every_ms"):
            continue
        if name.endswith("_ms") and isinstance(value, int):
            rows.append([name.removesuffix("_ms"), span(value)])
        else:
            rows.append([name.replace("_", " "), str(value)])
    rows += [
        ["set by", "an operator, live" if stored.source == "live" else stored.source],
        ["version", str(stored.version)],
        ["declared last", utc(stored.seen_ms) if stored.seen_ms else "never by code"],
    ]
    return [[word(name), word(text)] for name, text in rows]


def _next(found: ScheduleRow) -> list[Document]:
    """Return the next instants of a schedule; empty if the schedule is not on, or its rule cannot be read."""
    stored = found.schedule
    if stored.state != "on":
        return []
    try:
        rule: Recurrence = from_json(found.name, stored.rule)
        instants = list(islice(rule.instants(stored.next_ms - 1), NEXT))
    except (RqCoreError, ValueError, OverflowError):
        return []
    return [{"nominal_ms": at, "due_ms": at + rule.shift_ms} for at in instants]


def _last_by_name(logged: Any) -> dict[tuple[str, str], Document]:
    """Return (queue, schedule) → table row of its last instant in the audit log."""
    found: dict[tuple[str, str], Document] = {}
    if not isinstance(logged, dict):
        return found
    for queue, answer in logged.items():
        for each in answer:
            found[queue, each["name"]] = tick_row(queue, each)
    return found
