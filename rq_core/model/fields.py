"""A job's fields: each one's name in a state line and everywhere else, its kind, and its default.

Everywhere else (in events, in a folded record, in SQL) a field has one name. State lines have short names of their own,
since Redis keeps a line for every live job. What an event does to the fields says :mod:`rq_core.model.effects`.

    >>> BY_LINE["failed"].name
    'failures'
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from rq_core.model.machine import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_LOSSES, DEFAULT_PRIORITY


class Kind(Enum):
    """What a field may hold, if it is not null."""

    WORD = "a short text"
    NUMBER = "a whole number, 0 or more"
    PRIORITY = "one of the four priorities"
    LANE = "priority+scope+scope…"
    MESSAGE = "a text of any length"


class Field(NamedTuple):
    """One field of a job."""

    name: str
    kind: Kind
    line: str | None = None
    """Its name in a state line; None: Redis does not keep it."""
    default: Any = None
    """Its value if a state line leaves it out."""


_K = Kind

FIELDS: Final = (
    Field("task", _K.WORD, "task"),
    Field("priority", _K.PRIORITY, "priority", str(DEFAULT_PRIORITY)),
    Field("max_attempts", _K.NUMBER, "attempts", DEFAULT_MAX_ATTEMPTS),
    Field("max_losses", _K.NUMBER, "losses", DEFAULT_MAX_LOSSES),
    Field("unique_name", _K.WORD, "unique"),
    Field("once_ms", _K.NUMBER, "once"),
    Field("call_digest", _K.WORD, "call"),
    Field("keep_ms", _K.NUMBER, "keep"),
    Field("lane", _K.LANE, "lane"),
    Field("claims", _K.NUMBER, "claim", 0),
    Field("fence", _K.WORD, "fence"),
    Field("worker", _K.WORD, "by"),
    Field("failures", _K.NUMBER, "failed", 0),
    Field("losses", _K.NUMBER, "lost", 0),
    Field("unknown", _K.NUMBER, "unknown", 0),
    Field("seq", _K.NUMBER, "seq"),
    Field("name_stands", _K.WORD, "stands"),
    Field("expires_ms", _K.NUMBER, "expires"),
    Field("due_ms", _K.NUMBER, "due"),
    Field("since_ms", _K.NUMBER, "since"),
    Field("reason", _K.WORD, "reason"),
    Field("digest", _K.WORD),
    Field("enqueued_at_ms", _K.NUMBER),
    Field("ready_at_ms", _K.NUMBER),
    Field("claimed_at_ms", _K.NUMBER),
    Field("finished_at_ms", _K.NUMBER),
    Field("error_type", _K.WORD),
    Field("error_message", _K.MESSAGE),
)
"""Every field of a job but its id and its state. Those of a state line stand in the line's order."""

BY_LINE: Final = {field.line: field for field in FIELDS if field.line is not None}
"""The fields of a state line, by their names there, in their fixed order."""

STATE_FIELDS: Final = tuple(BY_LINE)
"""The names of a state line's fields, in their fixed order, after the state itself."""

COUNTERS: Final = ("claims", "failures", "losses", "unknown")
"""What is counted of a job from 0 on: null in an event is 0."""
