"""Compares the answers to callers who wait for jobs with the log: how each job ended, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rq_core.model.events import Entry, JobEvent
from rq_core.model.outcome import (
    EXPIRED,
    Cancelled,
    Expired,
    Failed,
    Kept,
    Outcome,
    Replaced,
    Succeeded,
)
from rq_core.model.result_encoding import unpack_result
from rq_core.model.table.effects import EFFECTS, target
from rq_core.model.table.machine import Event, State
from rq_core.protocol.reads.result_reads import Absent, Found, look_program
from tests.kit.clock import CLOCK_KEY

_REAL_TIME: Final = """local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
LOOK: Final = look_program().replace(
    _REAL_TIME, f"local now = tonumber(redis.call('GET', '{CLOCK_KEY}'))\n"
)
"""The program with which clients poll awaited jobs, on the clock of the simulation."""
assert LOOK != look_program()
OUTCOMES: Final[Mapping[Event, type[Outcome[object]]]] = {
    Event.SUCCEEDED: Succeeded,
    Event.CANCELLED: Cancelled,
    Event.EXPIRED: Expired,
    Event.REPLACED: Replaced,
    Event.PRUNED: Failed,
}
"""The outcome that a caller gets for a job, by the event that removed the job from Redis."""
NO_ROOM: Final = frozenset({"evicted", "full"})


class Clock(NamedTuple):
    """The server's clock (Unix ms), which a failover may set back."""

    now_ms: int
    latest_ms: int
    """The latest time that the clock has shown. Data that expire before this time may have been forgotten."""


@dataclass
class Life:
    """The last job with an id, according to the log."""

    keep_ms: int | None
    """How long (ms) the result is kept after the end of the job, or None if the result is not kept."""
    state: State | None
    """The state of the job, or None if the job has left Redis."""
    end: tuple[Entry, JobEvent] | None = None
    """The entry and the event that removed the job from Redis."""


@dataclass
class Results:
    """The last job of each id, according to the log. It knows which answers about an id are right."""

    lives: dict[str, Life] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    """The ids about which the log only says that Redis does not have the job."""

    def add(self, entry: Entry) -> None:
        """Apply an entry of the log."""
        if entry.event not in EFFECTS or entry.event is Event.DISCARDED:
            return
        for event in entry.jobs:
            state = target(entry.event, event.fields)
            if entry.event is Event.BASELINE and state is None:
                self.untold.add(event.job_id)
                self.lives.pop(event.job_id, None)
            elif EFFECTS[entry.event].begins:
                self.lives[event.job_id] = Life(event.fields["keep_ms"], state)
                self.untold.discard(event.job_id)
            elif (life := self.lives.get(event.job_id)) is not None:
                life.state = state
                life.end = (entry, event) if state is None else None

    def problems(
        self,
        found: Mapping[str, Found],
        returned: Mapping[tuple[str, str, str], str],
        clock: Clock,
        *,
        has_room: bool,
    ) -> list[str]:
        """Return the wrong answers as sentences. ``found`` has the answers by id.

        ``returned`` has the values that workers reported, by job, fence and worker.
        """
        wrong = []
        for job_id in sorted((found.keys() | self.lives.keys()) - self.untold):
            said, life = found.get(job_id), self.lives.get(job_id)
            if life is None:
                fits = isinstance(said, Absent) and said.known is None
            elif life.state is not None:
                is_dead = life.state is State.DEAD
                fits = isinstance(said, Failed) if is_dead else said is None
            else:
                assert life.end is not None
                fits = _fits(life, *life.end, said, returned, clock, has_room=has_room)
            if not fits:
                wrong.append(f"a caller is told {said} of {job_id}, of which the log has {life}")
        return wrong


def _fits(
    life: Life,
    entry: Entry,
    event: JobEvent,
    said: Found | None,
    returned: Mapping[tuple[str, str, str], str],
    clock: Clock,
    *,
    has_room: bool,
) -> bool:
    """Return whether this is a right answer about a job that has left Redis."""
    if said is None:
        return False
    outcome = said.known if isinstance(said, Absent) else said
    if life.keep_ms is None:
        return outcome is None
    until_ms = entry.at_ms + life.keep_ms
    if outcome is None:
        return until_ms <= clock.latest_ms or not has_room
    if type(outcome) is not OUTCOMES.get(entry.event):
        return False
    if isinstance(outcome, Replaced):
        by: str = event.fields["by_job"]
        return outcome.by == by
    if not isinstance(outcome, Succeeded):
        return True
    value = returned.get((event.job_id, event.fields["fence"], entry.by), "")
    if isinstance(outcome.kept, Kept):
        return outcome.kept.json == unpack_result(value)[1] and clock.now_ms < until_ms
    if outcome.missing in NO_ROOM:
        return not has_room
    if outcome.missing == EXPIRED:
        return until_ms <= clock.now_ms
    return outcome.missing == value[1:]
