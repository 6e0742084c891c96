"""Events of the log as they are shown, line by line: a row of the table of lists (:mod:`rq_core.views.table`)."""

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
"""Characters of a value that are shown."""


def last_events(engine: Engine, queues: Iterable[str], lines: int) -> Found[LoggedEvent]:
    """Return the last ``lines`` events of each of these queues, in the order in which they happened."""
    found = [event for queue in queues for event in queue_tail(engine, queue, lines)]
    return Found(sorted(found, key=lambda event: (event.at_ms, event.queue, event.place)))


def detail_of(event: LoggedEvent) -> dict[str, Any]:
    """Return what else an event carries; the scopes of a claim as people read them."""
    detail = dict(event.detail)
    scopes = detail.pop("scopes", None)
    try:
        return {"under": under(scopes), **detail} if scopes else detail
    except (TypeError, ValueError):
        return event.detail


def short(value: Any) -> str:
    """Return a value of an event on one line; of an error, its type, message and place."""
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
