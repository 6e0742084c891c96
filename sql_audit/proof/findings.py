"""The findings of a proof: violations of invariants, notes on what is unknown, and losses of events in Redis."""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.model.events import OutboxId

VIOLATIONS_KEPT: Final = 20
"""Maximum number of violations of each invariant that are kept; further violations are only counted."""


class Violation(NamedTuple):
    """A violation of an invariant, and the event that shows it. ``says`` is a phrase that continues a sentence about
    the event.
    """

    invariant: str
    """The invariant's name, such as "I3" (see ARCHITECTURE.md)."""
    queue: str
    epoch: int
    seq: int
    ordinal: int
    at_ms: int
    event: str
    job_id: str | None
    claim: int | None
    by: str | None
    says: str


class Note(NamedTuple):
    """A reason (``says``) why something cannot be proved from the event at ``at`` on."""

    at: OutboxId
    at_ms: int
    says: str
    lost: int | None = None
    """If Redis has lost the whole queue, and the log does not have this loss yet: the number of jobs that are live
    according to the log. Otherwise None."""


class SetBack(NamedTuple):
    """An occasion on which Redis' clock went back, by ``by_ms``, within an epoch. This is no violation: an operator or
    NTP may set the clock.
    """

    at: OutboxId
    """The number of the entry whose time is earlier than the time of the preceding entry."""
    at_ms: int
    by_ms: int


class Loss(NamedTuple):
    """A loss of events by Redis, shown by the first event of a later epoch. (An epoch is an unbroken history of a queue
    in Redis.)
    """

    at: OutboxId
    """The number of the first entry with which Redis continued after the loss."""
    at_ms: int
    after: OutboxId
    """The last entry that SQL has from before the new epoch. Redis may also have lost later entries, which SQL never
    had; their number is unknown."""
    orphaned: int
    """Number of events that SQL has and Redis forgot. They are not part of the history with which Redis continued."""
    jobs: int
    """Number of live jobs that were lost: all live jobs if Redis forgot everything, otherwise 0."""
    says: str
