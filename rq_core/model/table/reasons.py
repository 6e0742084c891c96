"""The words that rq-core writes as reasons: for deaths of jobs, for rollbacks, for refused settlements, and for new
epochs.

A task's own retry policy and other clients may use other words. To add a word, only this module changes, because
scripts and the audit database accept any word.

After a rollback whose reason begins with ``unknown_``, the job waits longer each time, and dies in the end
(``lua/rollback.lua``). After any other rollback, it waits as long as the worker asks, or not at all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The reason why a job died, why a worker gave a job back, or why a settlement was refused."""

    ATTEMPTS_SPENT = "attempts_spent"
    """The job died: it had failed max_attempts times."""
    GAVE_UP = "gave_up"
    """The job died: its retry policy says that the error is final, or the policy could return no delay for another
    attempt."""
    NOT_RETRIED = "not_retried"
    """The job died: its retry policy does not retry errors of this type."""
    POISON = "poison"
    """The job died: its lease had expired max_losses times."""
    EXPIRED = "expired"
    """The job died: its deadline had passed, and the job was parked, or had failed or lost a worker before."""
    UNREADABLE = "unreadable"
    """The job died: a worker could not read the job's JSON."""
    CANCELLED = "cancelled"
    """The job's handler ended because it was asked to stop."""
    UNKNOWN_TASK = "unknown_task"
    """A worker gave the job back because the worker does not have the job's task. After too many returns, the job
    died."""
    UNKNOWN_ARGUMENTS = "unknown_arguments"
    """A worker gave the job back because the worker's task does not accept the job's arguments. After too many returns,
    the job died."""
    LANE_CHANGED = "lane_changed"
    """A worker gave the job back and moved it into another lane (waiting line), because the producer did not know the
    caps of the task."""
    SUSPECT = "suspect"
    """A worker gave the job back with a delay. The job has lost a worker before, and the worker already runs another
    job that has lost a worker."""
    SNOOZED = "snoozed"
    """A worker gave the job back with a delay, because the job's handler raised Snooze."""
    SCOPE_PAUSED = "scope_paused"
    """A worker gave the job back, because the job's handler has paused one of its scopes."""
    PARKED = "parked"
    """A claim ended because the job is parked until a signal arrives, or until a time."""
    STEPS_LOST = "steps_lost"
    """A worker gave the job back, which should have parked. Redis had lost steps of the job, and the worker could not
    save these steps again."""
    SHUTDOWN = "shutdown"
    """A worker gave the job back because the worker was stopping."""
    NOT_STARTED = "not_started"
    """A worker gave the job back because it could not start a thread or a process for the job."""
    NEW_EPOCH = "new_epoch"
    """A worker gave the job back because Redis carried out the claim in a new epoch (a new numbering of the queue's
    events), perhaps before the code's limits were stored again. So perhaps no cap counted the job."""
    LATE = "late"
    """A worker gave the job back because the lease was nearly over before the handler could begin."""
    NO_ROOM = "no_room"
    """A worker gave the job back because the worker had no free place for the job any more."""
    GONE = "gone"
    """The end of a claim was refused, because Redis does not have the job."""
    STALE = "stale"
    """The end of a claim was refused, because the claim is not in force."""


class Began(StrEnum):
    """The reason why an epoch began. An epoch is a new numbering of the outbox."""

    CREATED = "created"
    """The queue is new: Redis had no keys of the queue."""
    REPLID_CHANGED = "replid_changed"
    """The replication id of Redis has changed: Redis is another server, or the same server after a restart."""
    OUTBOX_LOST = "outbox_lost"
    """Redis has the queue's jobs, but has lost its outbox."""
    ATTACHED = "attached"
    """An audit database begins to mirror the queue."""
    BEHIND = "behind"
    """The audit database had later entries than Redis, so Redis had lost entries."""


RESTATED_BY: Final = (Began.ATTACHED, Began.BEHIND, Began.OUTBOX_LOST)
"""The reasons for which an epoch begins with a baseline, which records the state of every live job."""
