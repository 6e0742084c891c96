"""How a job that Redis lost goes back, and one that it brought back leaves: from what the log knows to what
``restore.lua`` takes.

    client.restore("mail", [put_back(record, spec, digest)], after="-")
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from rq_core.model.events import JobRecord
from rq_core.model.machine import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    JOB_EVENT_FIELDS,
    STATE_FIELDS,
    Event,
    State,
)
from rq_core.model.state_line import RECORD_FIELDS, write_line
from rq_core.protocol.answers import Restoration

_TARGETS: Final = {
    State.READY: State.READY,
    State.RUNNING: State.READY,
    State.SCHEDULED: State.SCHEDULED,
    State.DEAD: State.DEAD,
}
"""Where a job goes back to, by where it stood. One that was asked to stop is wanted by nobody."""

PUT_BACK: Final = frozenset(_TARGETS)
"""The states from which a job is put back."""

_TOLD: Final = tuple(field.name for field in JOB_EVENT_FIELDS[Event.RESTORED])[4:]
"""The fields of the event that the script does not know better."""


def put_back(
    record: JobRecord,
    spec: str,
    digest: str,
    *,
    enqueued_ms: int | None = None,
    missing: bool = False,
) -> Restoration:
    """Enqueue a job again, as the log last knew it: its counters go on, a claim that it had is forgotten and spends
    nothing. ``spec`` is its immutable JSON. ``missing``: the log still takes it for alive. Raises KeyError for a state
    that is not in PUT_BACK.
    """
    assert record.state is not None
    target = _TARGETS[record.state]
    kept = replace(
        record,
        state=target,
        priority=record.priority or DEFAULT_PRIORITY,
        max_attempts=record.max_attempts or DEFAULT_MAX_ATTEMPTS,
        max_losses=record.max_losses or DEFAULT_MAX_LOSSES,
        reason=record.reason if target is State.DEAD else None,
        seq=None,
        due_ms=None,
        since_ms=None,
        fence=None,
        worker=None,
    )
    fields = {}
    for name in STATE_FIELDS:
        attribute, default = RECORD_FIELDS[name]
        value = getattr(kept, attribute)
        if value != default:
            fields[name] = value
    of_event: dict[str, Any] = {"digest": digest, "enqueued_ms": enqueued_ms}
    told = [of_event[name] if name in of_event else getattr(kept, name) for name in _TOLD]
    return Restoration(
        record.id,
        "missing" if missing else "restore",
        record.due_ms or 0,
        write_line(target, fields),
        json.dumps(told, separators=(",", ":"))[1:-1],
        spec,
    )


def take_out(job_id: str, line: str, ended: str) -> Restoration:
    """Remove a job that had ended, by the event ``ended``, if its state line still reads ``line``."""
    return Restoration(job_id, "remove", 0, line, json.dumps(ended))
