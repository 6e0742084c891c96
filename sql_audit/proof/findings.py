"""The findings of a proof: violations, notes on what is unknown, and losses of Redis."""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.model.events import OutboxId

VIOLATIONS_KEPT: Final = 20
"""How many violations of each invariant are kept; the others are counted."""


class Violation(NamedTuple):
    """One thing that must not be, and the event that shows it."""

    invariant: str
    """Its name in the design: I2 … I8."""
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
    """The reason why something is unknown from an event on."""

    at: OutboxId
    at_ms: int
    says: str
    lost: int | None = None
    """Jobs that were alive in a queue that Redis has lost, if the log does not have that loss yet."""


class SetBack(NamedTuple):
    """Redis' clock went back within an epoch. That proves no violation: an operator, or NTP, may set it."""

    at: OutboxId
    """The first entry with an earlier time than the one before."""
    at_ms: int
    by_ms: int


class Loss(NamedTuple):
    """A loss of Redis, as the beginning of an epoch shows it."""

    at: OutboxId
    """The beginning of the epoch with which it went on."""
    at_ms: int
    after: OutboxId
    """The last entry before the loss: later entries of Redis that SQL never had are lost, up to a number that is not
    known."""
    orphaned: int
    """Events that SQL has and that are no part of the history that went on."""
    jobs: int
    """Live jobs that were lost, all that there were."""
    says: str
