"""Decides from the events of the log whether a job that Redis lacks is lost, and whether it can be restored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rq_core.model.events import RECORD_FIELDS, JobRecord, OutboxId
from rq_core.model.job import spec_fault
from rq_core.model.table.effects import JOB_ENDS, REVIVALS
from rq_core.model.table.machine import Event, State
from rq_core.protocol.calls.audit import PUT_BACK, Restoration, put_back
from sql_audit.mirror.projection import rebuild
from sql_audit.store import orphans
from sql_audit.store.job_rows import EventRow, JobRow
from sql_audit.upkeep.windows import forgotten


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that Redis has lost. In SQL, it is live or lost. Or it is gone only because Redis' list of live jobs (a
    baseline) after a gap did not name it.
    """

    job_id: str
    task: str | None
    was: str
    """The job's last known state, before the loss."""
    enqueued_at_ms: int | None
    digest: str | None
    finished: str | None
    """The type of the event that ended the job, if Redis forgot this event: the job need not run again. Otherwise
    None."""
    ran_on: bool
    """True if a worker went on with the job after Redis had lost it: Redis refused the outcome that the worker
    reported."""
    uncertain: str | None
    """A sentence about where the job may have ended without an event in SQL: a gap in the log, or an entry in
    quarantine. None if it cannot have ended."""
    over: str | None
    """The reason why the job need not run again; None if the job must run again."""
    unknown: str | None
    """The reason why the job cannot be restored; None if the job can be restored."""
    steps_lost: bool = False
    """True if the log lacks a saved step of the durable job. The job's next step then fails."""
    why_lost: str | None = None
    """The reason why the durable job's steps and signals must not be put back from the log; None if they may be."""
    signals_lost: bool = False
    """True if the log lacks the value of a signal that the job has not taken yet. The sender must send it again."""


@dataclass(slots=True)
class JobLog:
    """The facts about a job that its events show beyond the job's row in SQL."""

    specs: dict[str, str] = field(default_factory=dict)
    """The JSON with which jobs of this id were enqueued, by the digest of the arguments. (An id may have been used
    twice.)"""
    fence: str | None = None
    """The fencing token of the job's last claim."""
    refused: str | None = None
    """The outcome that the worker of the last claim reported, if Redis refused it because Redis had lost the job.
    Otherwise None."""
    end: tuple[str, OutboxId] | None = None
    """The type and the entry of the event that ended the job, if Redis forgot this event. Otherwise None."""
    end_ms: int | None = None
    """Unix ms of the event in ``end``."""


def job_logs(rows: Iterable[EventRow], orphaned: Sequence[orphans.Range]) -> dict[str, JobLog]:
    """Return what the events of jobs show, by job id. ``rows`` are all events of these jobs, in order.

    ``orphaned`` are the ranges of events that Redis forgot.
    """
    told: dict[str, JobLog] = {}
    for row in rows:
        intake = rebuild.intake_of(row)
        if intake is None:
            continue
        event_type, job_id = str(intake.event), str(row[6])
        job = told.setdefault(job_id, JobLog())
        facts = {name: column[0] for name, column in intake.columns.items()}
        if event_type in REVIVALS:
            job.fence = job.refused = job.end = None
            if facts.get("spec") is not None:
                job.specs[facts["digest"]] = facts["spec"]
        elif event_type == Event.CLAIMED:
            job.fence, job.refused = str(intake.id), None
        elif event_type == Event.SETTLEMENT_REFUSED:
            if facts["reason"] == "gone" and facts["fence"] == job.fence:
                job.refused = facts["outcome"]
        elif (
            event_type in JOB_ENDS and not facts.get("dead") and orphans.in_any(intake.id, orphaned)
        ):
            job.end, job.end_ms = (event_type, intake.id), intake.at_ms
    return told


def judge_lost(
    job: JobRow, told: JobLog, was: str | None, uncertain: str | None, *, missing: bool
) -> tuple[LostJob, Restoration | None]:
    """Decide whether a lost job must be restored. Return the decision, and the record to send to Redis; None if nothing
    is restored.

    If the job had ended, the record restores only the id that Redis must remember. ``was`` is the job's last known
    state. ``uncertain`` is as in LostJob. ``missing`` is True if the job is live in SQL.
    """
    finished = None if told.end is None else told.end[0]
    spec = told.specs.get(job.digest or "")
    over = unknown = None
    if finished is not None:
        over = f"it had {finished}" if finished == "succeeded" else f"it was {finished}"
    elif told.refused == "complete":
        over = "a worker completed it after the loss"
    elif was == State.CANCELLING:
        over = "a cancellation was requested"
    elif spec is None:
        unknown = "the log does not keep its arguments"
    elif spec_fault(spec, job.task, job.digest):
        unknown = "the arguments in the log are not those that it was enqueued with"
    elif job.state not in PUT_BACK:
        unknown = f"by the log it is {job.state}"
    lost = LostJob(
        job.job_id, job.task, was or "unknown", job.enqueued_at_ms, job.digest, finished,
        told.refused is not None, uncertain, over, unknown,
    )  # fmt: skip
    if finished is not None:
        claimed = told.fence is not None
        return lost, forgotten(
            job.job_id, finished, told.end_ms, job.once_ms, job.call_digest, claimed=claimed, fence=told.fence
        )  # fmt: skip
    if over or unknown or spec is None or job.digest is None:
        return lost, None
    record = JobRecord(job.job_id, State(job.state))
    for name in (*RECORD_FIELDS, "complete"):
        setattr(record, name, getattr(job, name))
    enqueued_ms = job.enqueued_at_ms
    return lost, put_back(record, spec, job.digest, enqueued_ms=enqueued_ms, missing=missing)
