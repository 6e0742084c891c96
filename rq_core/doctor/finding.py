"""Findings of the doctor, and the edits that mend them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """Kinds of findings. All but INDEX, NO_WAKE and LOG_STRAY concern facts that no other key of the queue implies."""

    INDEX = "index"
    """An index differs from what the state lines imply."""
    NO_WAKE = "no_wake"
    """Jobs can be claimed, and no token would wake a worker for them."""
    UNREADABLE = "unreadable"
    """A state line, or a limit, that no script wrote."""
    NO_SPEC = "no_spec"
    """A live job whose arguments are gone: the worker that claims it can only fail it."""
    SPEC_DIFFERS = "spec_differs"
    """A live job whose task, arguments or timeout are not those with which it was enqueued."""
    NO_LINE = "no_line"
    """A job's arguments without its line, and the outbox does not go back far enough to say the job's state."""
    NO_CAPS = "no_caps"
    """The limits are gone."""
    NO_META = "no_meta"
    """The queue's own facts are gone."""
    NO_OUTBOX = "no_outbox"
    """The events are gone."""
    LOG_DIFFERS = "log_differs"
    """A job's state line, a setting or a limit in Redis differs from the log's last event about it."""
    UNLOGGED = "unlogged"
    """A live job that the log does not have, though it begins with the queue."""
    LOST = "lost"
    """A job that is live by the log, and that Redis does not have."""
    DRIFT = "drift"
    """Redis and the audit database differ, and no other finding says so."""
    UNKNOWN = "unknown"
    """Redis and the audit database could not be compared; the finding says why."""
    LOG_GAP = "log_gap"
    """Numbers are missing in the outbox."""
    LOG_STRAY = "log_stray"
    """An outbox entry under a number that no script gives; as a rule no event can follow it."""
    LOG_UNREADABLE = "log_unreadable"
    """An outbox entry that this release cannot read."""


class Edit(NamedTuple):
    """One change of one member of one key, and the value that the member must still have: a record of repair.lua."""

    key: str
    """A key of the queue; or `line`, a job's state line, or `head`, the first member of `waiting` in a lane."""
    member: str
    was: str
    """The member's value in the snapshot: empty if it has no value; LOWER matches any lower number."""
    value: str
    """Its value from now on: empty removes it, the same as ``was`` changes nothing."""


LOWER: Final = "<"

RELOG: Final = "baseline"
"""The value of an edit of the outbox: a baseline event of the job ``member``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not agree: a job, a lane, a fact."""

    kind: Kind
    says: str
    """One sentence for people, without a full stop."""
    job_id: str | None = None
    edits: tuple[Edit, ...] = ()
    """The edits that mend it: carried out together, or not at all."""
    owner: tuple[str, str] | None = None
    """The owner of the members of indexes that differ, such as a job, a lane or a name; None for other findings."""

    lost: int | None = None
    """How many jobs were alive by the log of a queue that Redis has lost."""

    @property
    def mendable(self) -> bool:
        """Whether `repair` can do something about it."""
        return bool(self.keys) or self.kind in (Kind.NO_META, Kind.NO_OUTBOX, Kind.LOG_STRAY)

    @property
    def keys(self) -> list[str]:
        """The keys that differ from what they should be."""
        return list(dict.fromkeys(edit.key for edit in self.edits if edit.value != edit.was))
