"""Views of schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rq_core.model.schedule import Schedule
from rq_core.views.table import Found
from rq_core.views.text import one_line, span, utc

if TYPE_CHECKING:
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations


class ScheduleRow(NamedTuple):
    """A schedule and its queue."""

    queue: str
    name: str
    schedule: Schedule


def schedules_of(calls: Operations, queues: Sequence[str]) -> Plan[Found[ScheduleRow]]:
    """Return the schedules of these queues, in the order of ``queues``, then by name."""
    rows: list[ScheduleRow] = []
    unread: list[str] = []
    for queue in queues:
        stored, why = yield from calls.schedules.readable(queue)
        unread += map(one_line, why)
        rows += [ScheduleRow(queue, name, each) for name, each in stored.items()]
    return Found(rows, empty="no schedules", unread=unread)


def when(row: ScheduleRow) -> str:
    """Return the rule of a schedule as text: its interval, or its cron expression and time zone."""
    said = _rule(row)
    if "every_ms" in said:
        every_ms = said["every_ms"]
        return f"every {span(every_ms) if isinstance(every_ms, int) else '?'}"
    cron, tz = said.get("cron", "?"), said.get("tz", "UTC")
    return str(cron) if tz == "UTC" else f"{cron} {tz}"


def next_due(row: ScheduleRow, now_ms: float) -> str:
    """Return, as text, the time until the next instant is due, or how late this instant is; "-" if the schedule is not
    on."""
    if row.schedule.state != "on":
        return "-"
    late_ms = now_ms - row.schedule.due_ms
    return f"late by {span(late_ms)}" if late_ms > 0 else f"in {span(-late_ms)}"


def schedule_notes(row: ScheduleRow, _now_ms: float) -> str:
    """Return notes about a schedule as one text, such as that it is paused, or that an operator has set it."""
    said, notes = _rule(row), []
    if row.schedule.state != "on":
        notes.append(row.schedule.state)
    if row.schedule.source != "code":
        notes.append({"live": "set live"}.get(row.schedule.source, row.schedule.source))
    if said.get("overlap", "skip") != "skip":
        notes.append(f"overlap: {said['overlap']}")
    return "; ".join(notes)


def schedule_document(row: ScheduleRow) -> dict[str, Any]:
    """Return a schedule as a JSON document."""
    each = row.schedule
    return {
        "queue": row.queue,
        "name": row.name,
        "state": each.state,
        "version": each.version,
        "source": each.source,
        "next_ms": each.next_ms if each.state == "on" else None,
        "due_ms": each.due_ms if each.state == "on" else None,
        "last_ms": each.last_ms or None,
        "seen_ms": each.seen_ms or None,
        "rule": _rule(row),
    }


def last_told(row: ScheduleRow, _now_ms: float) -> str:
    """Return the time of the last instant that was run or missed, as text; "-" before the first instant."""
    return utc(row.schedule.last_ms) if row.schedule.last_ms else "-"


def _rule(row: ScheduleRow) -> dict[str, Any]:
    try:
        said = json.loads(row.schedule.rule)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
