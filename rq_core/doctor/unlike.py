"""A job's line against what a log says of the job: what differs, and the line with the log's fields put back."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Final, NamedTuple

from rq_core.model.events import JobRecord
from rq_core.model.fields import BY_LINE
from rq_core.model.state_line import Job, fields_of, line_of, read_job, without_task, write_line

PUT_BACK: Final = frozenset({"unique", "stands", "expires", "due", "priority", "seq"})
"""The fields that a line gets back from the log: indexes rest on them, and only scripts change them. Another field that
was changed by hand stands, and the log is told."""


class Told(NamedTuple):
    """What the audit log says of a job that Redis tells differently."""

    seen: str | None
    """How the job stood in Redis when both were compared; None: it had no line."""
    line: str | None
    """How it stands by the log; None: it has ended, or the log does not say it."""


def unlike(job: Job, record: JobRecord) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ: the name in the line, what the line says, what the log says."""
    # A record that began in the middle knows only what its last events said.
    for name in BY_LINE if record.complete else ("due", "since"):
        logged, actual = getattr(record, BY_LINE[name].name), job.value(name)
        if name == "lane":
            # A task's first limit moves its jobs into lanes without an event.
            logged, actual = without_task(logged), without_task(actual)
        if logged != actual:
            yield name, actual, logged


def line_by(
    record: JobRecord, line: str | None, caps: Container[str], *, in_state: bool
) -> str | None:
    """Return the line that a job is to have by all of its log: its own ``line`` with the log's fields, or the log's if
    its own is lost. That is so if it has none, if its own cannot be read, and if it is not ``in_state`` and not what
    `jobs` would say of a job that only waits. None if nothing is to be put back."""
    try:
        job = None if line is None else read_job(record.id, line)
    except ValueError:
        job = None
    if job is None:
        return line_of(record, caps)
    if record.state is not None and job.state is not record.state:
        return line_of(record, caps) if record.complete else _claimed(job, record)
    differs = {name for name, _, _ in unlike(job, record)}
    if not record.complete or not differs:
        return None
    if not in_state:
        return line_of(record, caps)
    changed = differs & PUT_BACK
    if not changed or job.state is not record.state:
        return None
    told = fields_of(record)
    fields = {name: value for name, value in job.fields.items() if name not in changed}
    mended = write_line(job.state, fields | {name: told[name] for name in changed & told.keys()})
    try:
        read_job(record.id, mended)
    except ValueError:
        return None
    return mended


def _claimed(job: Job, record: JobRecord) -> str | None:
    """Return the line of a job of which the log has the claim in force, and not what came before."""
    if record.fence is None or record.state is None:
        return None
    told = {
        "claim": record.claims,
        "fence": record.fence,
        "by": record.worker,
        "since": record.since_ms,
    }
    return write_line(record.state, {**job.fields, **told})
