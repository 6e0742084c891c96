"""Sets of events, written by hand for the judges: the events that end a claim, that end a job, and others.

They are not derived from the product's table of transitions. So the judges find a mistake in the table.
"""

from __future__ import annotations

from typing import Final

from rq_core.model.table.machine import Event

GIVEN_BACK: Final = frozenset({Event.LEASE_EXPIRED, Event.ROLLED_BACK})
"""The events that end a claim and after which its handler may still be running, or may be run again."""
SETTLED: Final = frozenset(
    {Event.SUCCEEDED, Event.RETRIED, Event.DIED, Event.CANCELLED, Event.PARKED}
)
"""The events that end a claim, except those in GIVEN_BACK."""
CLAIM_ENDS: Final = GIVEN_BACK | SETTLED
JOB_ENDS: Final = frozenset(
    {Event.SUCCEEDED, Event.CANCELLED, Event.PRUNED, Event.REMOVED, Event.EXPIRED, Event.REPLACED}
)
"""The events that remove a job from Redis. (A job that has failed before becomes dead when it expires.)"""
ABSENT: Final = JOB_ENDS | {Event.DISCARDED}
"""The events after which Redis does not have the job. A discarded job was never in Redis."""
NO_STEP: Final = frozenset({Event.SETTLEMENT_REFUSED, Event.FREED, Event.BASELINE})
"""The events that do not change the state of a job."""
