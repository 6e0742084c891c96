"""The log against ``state``, as far back as the outbox goes."""

from __future__ import annotations

from collections.abc import Iterator

from rq_core.doctor.finding import Finding, Kind, Record
from rq_core.doctor.view import View
from rq_core.model.events import JobRecord
from rq_core.model.fields import BY_LINE
from rq_core.model.machine import State
from rq_core.model.state_line import Job, line_of, without_task


def findings(view: View) -> Iterator[Finding]:
    """Compare what the log says of every job with its state line."""
    for job_id, job in view.jobs.items():
        record = view.log.records.get(job_id)
        relog = Record("job", job_id, relog=1)
        if record is None:
            if view.log.whole:
                says = f"job {job_id} is {job.state}, and the log has never heard of it"
                yield Finding(Kind.UNLOGGED, says, job_id, relog)
        elif differences := list(_differences(job, record)):
            says = f"job {job_id} differs from the log: {', '.join(differences)}"
            yield Finding(Kind.LOG_DIFFERS, says, job_id, relog)
    for job_id, why in view.unreadable.items():
        yield _unreadable(view, job_id, why)
    for job_id, record in view.log.records.items():
        if record.state is not None and job_id not in view.lines:
            yield _lost(view, record)
    for entry_id in view.log.gaps:
        says = f"the outbox lacks entries before {entry_id}"
        yield Finding(Kind.LOG_GAP, says)
    for says in view.log.unreadable:
        yield Finding(Kind.LOG_UNREADABLE, f"the outbox cannot be read at {says}")


def _differences(job: Job, record: JobRecord) -> Iterator[str]:
    if job.state is not record.state:
        yield f"{job.state} by its state, {record.state or 'gone'} by the log"
    # A record that began in the middle knows only what its last events said.
    names = BY_LINE if record.complete else ("due", "since")
    for name in names:
        logged, actual = getattr(record, BY_LINE[name].name), job.value(name)
        if name == "lane":
            # A task's first limit moves its jobs into lanes without an event.
            logged, actual = without_task(logged), without_task(actual)
        if logged != actual:
            yield f"{name}={actual}, {logged} by the log"


def _unreadable(view: View, job_id: str, why: str) -> Finding:
    was = view.lines[job_id]
    says = f"the state of job {job_id} cannot be read, {why}: {was!r}"
    record = view.log.records.get(job_id)
    line = line_of(record, view.snapshot["caps"]) if record is not None else None
    if line is None:
        return Finding(Kind.UNREADABLE, f"{says}; the log does not say how it was", job_id)
    return Finding(Kind.UNREADABLE, says, job_id, _restored(view, job_id, was, line))


def _lost(view: View, record: JobRecord) -> Finding:
    """Report a job that the log has and Redis has not; put back if its arguments are there."""
    says = f"job {record.id} is {record.state} by the log, and Redis does not have it"
    line = line_of(record, view.snapshot["caps"]) if record.id in view.specs else None
    if line is None:
        return Finding(Kind.LOST, says, record.id, Record("job", record.id, relog=1))
    says += "; its arguments are there, so it can be put back"
    return Finding(Kind.LOST, says, record.id, _restored(view, record.id, "", line))


def _restored(view: View, job_id: str, was: str, line: str) -> Record:
    ready = line.startswith(State.READY)
    listed = any(job_id in entries for entries in view.lists)
    return Record("job", job_id, 1, int(ready and not listed), was, line)
