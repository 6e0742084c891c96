"""The words that rq-core writes as reasons: why a job died, why a worker gave a job back to its queue, why the end of a
claim was refused, and why an epoch began.

A task's own retry policy and other clients may use other words. A new word needs only a line in this module, since
scripts and SQL accept any word. A rollback whose reason begins with ``unknown_`` waits longer each time and dies in the
end (``lua/rollback.lua``); a job that is rolled back for another reason waits as long as the worker asks, or not at
all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The reason why a job died, why a worker gave a job back, or why the end of a claim (its settlement) was
    refused."""

    ATTEMPTS_SPENT = "attempts_spent"
    """Died: it failed max_attempts times."""
    GAVE_UP = "gave_up"
    """Died: its retry policy says that this error is final, or there is no delay for another attempt."""
    NOT_RETRIED = "not_retried"
    """Died: its error is not among those that its retry policy retries."""
    POISON = "poison"
    """Died: its lease expired max_losses times."""
    EXPIRED = "expired"
    """Died: its deadline is over, and it had failed or lost a worker before."""
    UNREADABLE = "unreadable"
    """Died: a worker could not read its JSON."""
    CANCELLED = "cancelled"
    """Its handler ended because it was asked to stop."""
    UNKNOWN_TASK = "unknown_task"
    """Given back, and dead after too many returns: the worker does not have its task."""
    UNKNOWN_ARGUMENTS = "unknown_arguments"
    """Given back, and dead after too many returns: the worker's task does not take its arguments."""
    LANE_CHANGED = "lane_changed"
    """Given back into another lane: its producer did not know the caps of its task."""
    SUSPECT = "suspect"
    """Given back with a delay: the job has lost a worker before, and another such job runs on this worker."""
    SNOOZED = "snoozed"
    """Given back with a delay: its handler raised Snooze."""
    SHUTDOWN = "shutdown"
    """Given back: the worker was stopping."""
    NOT_STARTED = "not_started"
    """Given back: the worker could not start a thread or a process for it."""
    NEW_EPOCH = "new_epoch"
    """Given back: Redis began an epoch between the claim and its answer."""
    LATE = "late"
    """Given back: its lease was nearly over before its handler could begin."""
    NO_ROOM = "no_room"
    """Given back: the worker had no free place for it any more."""
    GONE = "gone"
    """A settlement was refused: Redis has no such job."""
    STALE = "stale"
    """A settlement was refused: its claim is not in force."""


class Began(StrEnum):
    """The reason why an epoch (a new numbering of the outbox) began."""

    CREATED = "created"
    """The queue is new: Redis has nothing of it."""
    REPLID_CHANGED = "replid_changed"
    """The replication id of Redis has changed: Redis is another server, or the same server after a restart."""
    OUTBOX_LOST = "outbox_lost"
    """Redis has the queue's jobs, but has lost its outbox."""
    ATTACHED = "attached"
    """An audit database begins to mirror the queue."""
    BEHIND = "behind"
    """The audit database had later entries than Redis, so Redis had lost entries."""


RESTATED_BY: Final = (Began.ATTACHED, Began.BEHIND, Began.OUTBOX_LOST)
"""The reasons of those epochs that begin with a baseline, which states all live jobs."""
