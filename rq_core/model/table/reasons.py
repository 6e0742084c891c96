"""The words that rq-core itself writes as a reason: why a job died or was given back, why a settlement was refused,
and why an epoch began.

A task's own retry policy and other clients may give other words. A new word needs only a line here: scripts and SQL
take any. A rollback whose reason begins with ``unknown_`` waits longer each time and dies in the end
(``lua/rollback.lua``); any other is a return, at once or after the worker's delay.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a job died, was given back or was refused a settlement."""

    ATTEMPTS_SPENT = "attempts_spent"
    """Died: it failed as often as it may."""
    GAVE_UP = "gave_up"
    """Died: its retry policy says that this error is final, or there is no delay for another attempt."""
    NOT_RETRIED = "not_retried"
    """Died: its retry policy names the errors that are retried, and this is another one."""
    POISON = "poison"
    """Died: it lost as many workers as it may."""
    EXPIRED = "expired"
    """Died: its deadline is over, and it had failed or lost a worker before."""
    UNREADABLE = "unreadable"
    """Died: a worker could not read its JSON."""
    CANCELLED = "cancelled"
    """Its handler ended because it was asked to stop."""
    UNKNOWN_TASK = "unknown_task"
    """Given back, and dead after some times: the worker does not have its task."""
    UNKNOWN_ARGUMENTS = "unknown_arguments"
    """Given back, and dead after some times: the worker's task does not take its arguments."""
    LANE_CHANGED = "lane_changed"
    """Given back into another lane: its producer did not know the caps of its task."""
    SUSPECT = "suspect"
    """Given back for a while: it has lost a worker, and another such job runs on this one."""
    SNOOZED = "snoozed"
    """Given back for a while: its handler raised Snooze."""
    SHUTDOWN = "shutdown"
    """Given back: the worker stops."""
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
    """Why an epoch began."""

    CREATED = "created"
    """The queue is new, as far as Redis knows."""
    REPLID_CHANGED = "replid_changed"
    """Another server, or the same one after a restart."""
    OUTBOX_LOST = "outbox_lost"
    """The jobs are there, the outbox is not."""
    ATTACHED = "attached"
    """An audit database mirrors the queue from here on."""
    BEHIND = "behind"
    """The audit database has later numbers than Redis had."""


RESTATED_BY: Final = (Began.ATTACHED, Began.BEHIND, Began.OUTBOX_LOST)
"""Why an epoch began, if a baseline of all live jobs follows."""
