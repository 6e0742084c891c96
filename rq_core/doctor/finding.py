"""What the doctor finds, and what repair.lua is told to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What does not agree."""

    UNREADABLE = "unreadable"
    """A state line, or a limit, that no script wrote."""
    NO_SPEC = "no_spec"
    """A live job whose arguments are gone: the worker that claims it can only fail it."""
    NO_STATE = "no_state"
    """A job's arguments without a state line."""
    NOT_LISTED = "not_listed"
    """A ready job that stands in no list and no lane: nobody would ever claim it."""
    NO_PLACE = "no_place"
    """A lane that stands nowhere, or elsewhere than its jobs say."""
    KEPT_WAITING = "kept_waiting"
    """A scope has room, and nothing would let in what waits for it."""
    NOT_COUNTED = "not_counted"
    """A claimed job that does not hold a scope of its own: one too many could run."""
    RATE_LOST = "rate_lost"
    """A rate was spent, and until when is gone: it would be spent again too soon."""
    TURN_LOST = "turn_lost"
    """What a key of a fair queue has had is gone: it would be served before its turn."""
    CAPS_UNNOTED = "caps_unnoted"
    """Limits are stored, and nothing in ``meta`` says that they are to be looked at."""
    NO_CAPS = "no_caps"
    """The limits are gone."""
    NOT_SCHEDULED = "not_scheduled"
    """A scheduled job that would never become ready, or at another time than its state says."""
    NO_LEASE = "no_lease"
    """A claimed job whose claim would never end."""
    NOT_AMONG_DEAD = "not_among_dead"
    """A dead job that nobody would be shown."""
    NEVER_FORGOTTEN = "never_forgotten"
    """A dead job or a call slot that would stay in Redis for ever, or for too long."""
    STRAY = "stray"
    """A member of an index that leads nowhere."""
    TOMBSTONES = "tombstones"
    """The number of list entries that lead nowhere is not the one noted."""
    SEQUENCE = "sequence"
    """Places in line were given that are to be given again."""
    NO_WAKE = "no_wake"
    """Jobs are ready, and no token would wake a worker for them."""
    TOO_MANY_WAKES = "too_many_wakes"
    """More than one token: workers would wake for nothing."""
    NO_META = "no_meta"
    """The queue's own facts are gone."""
    NO_OUTBOX = "no_outbox"
    """The events are gone."""
    LOG_DIFFERS = "log_differs"
    """The log tells another story of a job than its state."""
    UNLOGGED = "unlogged"
    """A job that the log has never heard of, though it begins with the queue."""
    LOST = "lost"
    """A job that is live by the log, and that Redis does not have."""
    LOG_GAP = "log_gap"
    """Numbers are missing in the outbox."""
    LOG_UNREADABLE = "log_unreadable"
    """An outbox entry that this release cannot read."""


class Record(NamedTuple):
    """One record of repair.lua, in its order; see there."""

    kind: str
    name: str
    relog: int = 0
    relist: int = 0
    was: str = ""
    line: str = ""

    def joined(self, other: Record) -> Record:
        """Return one record that does what both do. Both are of one job."""
        line = self if self.line else other
        return Record(
            self.kind,
            self.name,
            max(self.relog, other.relog),
            max(self.relist, other.relist),
            line.was,
            line.line,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not agree."""

    kind: Kind
    says: str
    """One sentence for people, without a full stop."""
    job_id: str | None = None
    record: Record | None = None
    """What repair.lua is to do; see there."""
    value: int | None = None
    """For TOMBSTONES and SEQUENCE: what the number should be."""

    @property
    def mendable(self) -> bool:
        """Whether `repair` can do something about it."""
        return self.record is not None or self.kind in _OF_THE_QUEUE


_OF_THE_QUEUE = frozenset(
    {
        Kind.TOMBSTONES,
        Kind.SEQUENCE,
        Kind.NO_WAKE,
        Kind.TOO_MANY_WAKES,
        Kind.NO_META,
        Kind.NO_OUTBOX,
    }
)
