"""Meanings of a log's events for a judge.

The sets are written by hand and not read from the product's table, so that a mistake in the table is found.
"""

from __future__ import annotations

from typing import Final

from rq_core.model.table.machine import Event

GIVEN_BACK: Final = frozenset({Event.LEASE_EXPIRED, Event.ROLLED_BACK})
"""Ends of a claim after which its handler may still be running, or be run again from the start."""
SETTLED: Final = frozenset({Event.SUCCEEDED, Event.RETRIED, Event.DIED, Event.CANCELLED})
"""The other ends of a claim."""
CLAIM_ENDS: Final = GIVEN_BACK | SETTLED
JOB_ENDS: Final = frozenset(
    {Event.SUCCEEDED, Event.CANCELLED, Event.PRUNED, Event.REMOVED, Event.EXPIRED, Event.REPLACED}
)
"""Events that take a job out of Redis. (A job that has failed before is dead when it expires.)"""
ABSENT: Final = JOB_ENDS | {Event.DISCARDED}
"""Events after which Redis does not have the job. One that was discarded was never there."""
NO_STEP: Final = frozenset({Event.SETTLEMENT_REFUSED, Event.FREED, Event.BASELINE})
"""Events after which a job stands where it stood."""
