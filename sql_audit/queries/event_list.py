"""A list of events from the log, one line per event, for the tables of :mod:`rq_core.views.table`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from rq_core.model.job import place_in
from rq_core.views.table import Found, ListView
from sql_audit.queries.history import LoggedEvent, queue_tail, under
from sql_audit.times import readable

if TYPE_CHECKING:
    from sqlalchemy import Engine

VALUE_MAX: Final = 100
"""Maximum number of characters of a value that a line shows."""


def last_events(engine: Engine, queues: Iterable[str], lines: int) -> Found[LoggedEvent]:
    """Return the last ``lines`` events of each queue in one list, ordered by time, then by queue and place in the
    log.
    """
    found = [event for queue in queues for event in queue_tail(engine, queue, lines)]
    return Found(sorted(found, key=lambda event: (event.at_ms, event.queue, event.place)))


def detail_of(event: LoggedEvent) -> dict[str, Any]:
    """Return the fields in an event's detail. The scopes of a claim (what caps and rates count) become one text,
    ``under``.
    """
    detail = dict(event.detail)
    scopes = detail.pop("scopes", None)
    try:
        return {"under": under(scopes), **detail} if scopes else detail
    except (TypeError, ValueError):
        return event.detail


def short(value: Any) -> str:
    """Return a value of an event as one line of at most VALUE_MAX characters.

    The line of an error is its type and its message, cut to this length, and its place in the code.
    """
    if isinstance(value, dict) and "type" in value:
        place = place_in(str(value.get("traceback", "")))
        error = _cut(f"{value['type']}: {value.get('message', '')}")
        return f"{error} ({place})" if place else error
    return _cut(str(value))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= VALUE_MAX else line[: VALUE_MAX - 1] + "…"


def _facts(event: LoggedEvent, _now_ms: float) -> str:
    facts = {"by": event.worker, "task": event.task, "claim": event.claim}
    known = {name: value for name, value in facts.items() if value is not None} | detail_of(event)
    return "  ".join(f"{name}={short(value)}" for name, value in known.items())


EVENTS: Final[ListView[LoggedEvent]] = ListView(
    last_events,
    {
        "at": lambda event, _: readable(event.at_ms),
        "queue": lambda event, _: event.queue,
        "number": lambda event, _: event.number,
        "event": lambda event, _: event.type,
        "job": lambda event, _: event.job_id or "-",
        "facts": _facts,
    },
    dataclasses.asdict,
)
