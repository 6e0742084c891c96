"""Findings (differences) of the doctor, and the edits that repair them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """The kinds of findings. Most are about data that cannot be derived from the queue's other keys. The exceptions are
    INDEX, NO_WAKE and LOG_STRAY."""

    INDEX = "index"
    """An index differs from the one that the jobs' state lines imply."""
    NO_WAKE = "no_wake"
    """Jobs are ready, but there is no wake token, so no idle worker is woken for them."""
    UNREADABLE = "unreadable"
    """A state line, a limit, a schedule, an epoch or a row of a list cannot be read."""
    NO_SPEC = "no_spec"
    """A live job has lost its arguments. The worker that claims it can only fail it."""
    SPEC_DIFFERS = "spec_differs"
    """A live job has another task, other arguments, another timeout or other limits of its attempts than it was
    enqueued with. Or the job that a schedule enqueues is not the one in the log."""
    NO_LINE = "no_line"
    """Redis has the arguments of a job but not its state line, and the outbox does not show the job's state."""
    NO_BOX = "no_box"
    """A durable job has lost its saved steps."""
    BOX_DIFFERS = "box_differs"
    """The saved steps or the signals of a durable job differ from the log, or a saved value does not match the digest
    beside it."""
    NO_SIGNAL = "no_signal"
    """A durable job has lost a signal, and the log does not have the signal's value or must not be trusted."""
    RIPE = "ripe"
    """A parked job could continue: the signal for which it waits has arrived, but the job was not woken."""
    NO_CAPS = "no_caps"
    """The queue's limits are missing."""
    NO_META = "no_meta"
    """The key `meta`, with the queue's epoch and settings, is missing."""
    NO_OUTBOX = "no_outbox"
    """The outbox is missing."""
    LOG_DIFFERS = "log_differs"
    """A job's state line, a setting, a limit, a schedule or the epoch in Redis differs from the last event about it in
    the log."""
    UNLOGGED = "unlogged"
    """The log does not have a live job or a schedule, although it should have all of them."""
    LOST = "lost"
    """The log shows that a job is alive, or that a schedule is stored, but Redis does not have it."""
    DRIFT = "drift"
    """Redis and the audit database differ in a way that no other finding reports."""
    UNKNOWN = "unknown"
    """Redis and the log could not be compared, as a whole or in one part. The finding gives the reason."""
    LOG_GAP = "log_gap"
    """Entries are missing in the outbox: two neighbouring entries do not have consecutive numbers."""
    LOG_STRAY = "log_stray"
    """An outbox entry has an id that no script assigns. Usually Redis then accepts no further events."""
    LOG_UNREADABLE = "log_unreadable"
    """This release cannot read an outbox entry."""


class Edit(NamedTuple):
    """One change of one member of a key. repair.lua makes the change only if the member still has the value ``was``."""

    key: str
    """A key of the queue; or `line` (a job's state line), or `head` (the first member of `waiting` in a lane)."""
    member: str
    was: str
    """The member's value in the snapshot. Empty: the member did not exist. LOWER: a number lower than ``value``."""
    value: str
    """The new value. An empty text removes the member. A value equal to ``was`` changes nothing, and only guards other
    edits."""


LOWER: Final = "<"

RELOG: Final = "baseline"
"""The value of an outbox edit that appends a baseline event: an event with the whole state of the job ``member``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference in a queue, and the edits that repair it. It may be about a job, a lane, or the queue itself."""

    kind: Kind
    says: str
    """The finding as one sentence for operators, without a full stop."""
    job_id: str | None = None
    edits: tuple[Edit, ...] = ()
    """The edits that repair the finding. They are made together or not at all."""
    owner: tuple[str, str] | None = None
    """The owner of the differing members of indexes, as (kind, name), such as a job or a lane; None for other
    findings."""

    lost: int | None = None
    """Number of jobs that are alive according to the log, if Redis has lost the whole queue; otherwise None."""

    is_part: bool = False
    """True if ``edits`` repair only a part of the difference. The next examination of the queue finds the rest."""

    @property
    def mendable(self) -> bool:
        """Return whether `repair` can repair the finding."""
        by_itself = (Kind.NO_META, Kind.NO_OUTBOX, Kind.LOG_STRAY, Kind.RIPE)
        return bool(self.keys) or self.kind in by_itself

    @property
    def keys(self) -> list[str]:
        """The keys that the edits change."""
        return list(dict.fromkeys(edit.key for edit in self.edits if edit.value != edit.was))
