"""Makes the row of a new job, and sets the fields of a job's row that one event changes."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final

from rq_core.model.table.effects import Effect
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.fields import COUNTERS
from rq_core.model.table.machine import Event
from sql_audit.store.job_rows import ERROR_MESSAGE_MAX, ERROR_TYPE_MAX, JobRow
from sql_audit.store.schema.tables import JOB_COLUMNS
from sql_audit.store.storable_text import clean

TAKEN: Final = (
    "id", "due_ms", "task",
    *(f.name for f in JOB_EVENT_FIELDS[Event.ENQUEUED] if f.name in JOB_COLUMNS and f.name not in ("due_ms", "task")),
)  # fmt: skip
"""The fields of the event ``enqueued`` that are copied into the job's row."""
_OF_ENTRY: Final = (
    "queue", "complete", "last_epoch", "last_seq", "enqueued_at_ms", "since_ms", "null", "zero", "state", "ready_at_ms",
)  # fmt: skip
"""The further values of an enqueued job's row. They are the same for all jobs that one outbox entry enqueues in the
same state."""
_PARTS: Final = {"job_id": 0} | {name: place for place, name in enumerate((*TAKEN, *_OF_ENTRY))}
new_row: Final = itemgetter(
    *(_PARTS.get(name, _PARTS["zero" if name in COUNTERS else "null"]) for name in JOB_COLUMNS)
)
"""Makes the row of an enqueued job from a tuple: the values of the fields TAKEN, then the values named in _OF_ENTRY."""


def take_fields(job: JobRow, effect: Effect, facts: dict[str, Any], at_ms: int) -> None:
    """Set the fields of a job's row that an event changes.

    ``effect`` says which fields change, ``facts`` has the event's fields, and ``at_ms`` is the time of the event (Unix
    ms).
    """
    for name in effect.clears:
        setattr(job, name, None)
    for name in effect.zeroes:
        setattr(job, name, 0)
    for name, told in effect.takes:
        value = facts[told]
        setattr(job, name, 0 if value is None and name in COUNTERS else value)
    for name in effect.takes_if_told:
        if facts[name] is not None:
            setattr(job, name, facts[name])
    for name in effect.stamps:
        setattr(job, name, at_ms)


def waited_ms(job: JobRow) -> int | None:
    if job.ready_at_ms is None or job.claimed_at_ms is None:
        return None
    return max(0, int(job.claimed_at_ms - job.ready_at_ms))


def error_text(error: Any) -> tuple[str | None, str | None]:
    """Return the type and the message of a job's error, shortened and in characters that SQL can store. None: that part
    is missing.
    """
    if not isinstance(error, dict):
        return None, clean(str(error))[:ERROR_MESSAGE_MAX]
    kind, message = error.get("type"), error.get("message")
    return (
        None if kind is None else clean(str(kind))[:ERROR_TYPE_MAX],
        None if message is None else clean(str(message))[:ERROR_MESSAGE_MAX],
    )
