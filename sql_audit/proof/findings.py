"""The findings of a proof: violations of invariants, notes on what is unknown, and losses of events in Redis."""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.model.events import OutboxId

VIOLATIONS_KEPT: Final = 20
"""Maximum number of violations of each invariant that are kept; further violations are only counted."""


class Violation(NamedTuple):
    """A violation of an invariant, and the event that shows it. ``says`` is a predicate: the event is its subject."""

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
    """From the event at ``at`` on, something cannot be proved. ``says`` is the reason."""

    at: OutboxId
    at_ms: int
    says: str
    lost: int | None = None
    """If Redis has lost the queue and the log does not have this loss yet: the number of jobs that are alive according
    to the log."""


class SetBack(NamedTuple):
    """Redis' clock went back by ``by_ms`` within an epoch. This is no violation: an operator or NTP may set the
    clock.
    """

    at: OutboxId
    """The entry that has an earlier time than the entry before it."""
    at_ms: int
    by_ms: int


class Loss(NamedTuple):
    """Events that Redis has lost, as the first event of a later epoch shows."""

    at: OutboxId
    """The first entry of the epoch with which Redis continued."""
    at_ms: int
    after: OutboxId
    """The last entry before the loss. Redis may have lost later entries that SQL never had; their number is unknown."""
    orphaned: int
    """Number of events in SQL that are not part of the history with which Redis continued."""
    jobs: int
    """Number of live jobs that were lost: all live jobs if Redis forgot everything, otherwise 0."""
    says: str
