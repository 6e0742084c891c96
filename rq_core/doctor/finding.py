"""Findings of the doctor, and the edits that repair them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """Kinds of findings. Most are about data that the queue's other keys do not imply.

    The exceptions are INDEX, NO_WAKE and LOG_STRAY.
    """

    INDEX = "index"
    """An index differs from the state lines."""
    NO_WAKE = "no_wake"
    """Jobs can be claimed, but no token would wake a worker for them."""
    UNREADABLE = "unreadable"
    """A state line, a limit, an epoch or a row of a list that cannot be read."""
    NO_SPEC = "no_spec"
    """A live job without arguments: the worker that claims it can only fail it."""
    SPEC_DIFFERS = "spec_differs"
    """A live job whose task, arguments or timeout differ from those with which it was enqueued."""
    NO_LINE = "no_line"
    """Redis has a job's arguments and lacks its state line, and the outbox does not show the job's state either."""
    NO_BOX = "no_box"
    """A durable job that has lost what its steps had saved."""
    BOX_DIFFERS = "box_differs"
    """A durable job whose box differs from the log in an entry or a signal, or has a value that does not match the
    digest beside the value."""
    NO_SIGNAL = "no_signal"
    """A durable job that has lost a signal; the log does not have the signal's value."""
    RIPE = "ripe"
    """A parked job that can continue: a signal for which it waits has arrived, and no call has woken the job."""
    NO_CAPS = "no_caps"
    """The queue's limits are missing."""
    NO_META = "no_meta"
    """The key `meta`, with the queue's epoch and settings, is missing."""
    NO_OUTBOX = "no_outbox"
    """The outbox is missing."""
    LOG_DIFFERS = "log_differs"
    """A job's state line, a setting or a limit in Redis differs from the log's last event about it."""
    UNLOGGED = "unlogged"
    """A live job or a schedule that the log does not have, although the log must have all of them."""
    LOST = "lost"
    """A job that is live according to the log, but missing in Redis."""
    DRIFT = "drift"
    """Redis and the audit database differ, and no other finding reports the difference."""
    UNKNOWN = "unknown"
    """Redis and the audit database could not be compared; the finding gives the reason."""
    LOG_GAP = "log_gap"
    """Entries are missing in the outbox: the numbers of two neighbouring entries are not consecutive."""
    LOG_STRAY = "log_stray"
    """An outbox entry with a number that no script assigns. Usually no event can be appended after such an entry."""
    LOG_UNREADABLE = "log_unreadable"
    """An outbox entry that this release cannot read."""


class Edit(NamedTuple):
    """One change of one member of one key. repair.lua makes the change only if the member still has the value
    ``was``."""

    key: str
    """A key of the queue; or `line` (a job's state line), or `head` (the first member of `waiting` in a lane)."""
    member: str
    was: str
    """The member's value in the snapshot; empty: it has no value; LOWER: any lower number than ``value``."""
    value: str
    """The new value. An empty text removes the member; the same text as ``was`` changes nothing."""


LOWER: Final = "<"

RELOG: Final = "baseline"
"""The value of an edit of the outbox: append a baseline event for the job ``member``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference of a queue: in a job, a lane, or a fact about the queue."""

    kind: Kind
    says: str
    """The finding as one sentence for operators, without a full stop."""
    job_id: str | None = None
    edits: tuple[Edit, ...] = ()
    """The edits that repair the finding: carried out together, or not at all."""
    owner: tuple[str, str] | None = None
    """The owner of the differing members of indexes, such as a job, a lane or a name; None for other findings."""

    lost: int | None = None
    """Number of jobs that were alive according to the log, if Redis has lost the whole queue."""

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
