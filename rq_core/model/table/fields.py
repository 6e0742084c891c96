"""A job's fields: the two names of each, its kind, and its default.

Events, folded records and the columns of the table ``job`` in the audit database use the same name of a field. State
lines use a short name, because Redis has a line for every live job. :mod:`rq_core.model.table.event_fields` has the
fields of each event; :mod:`rq_core.model.table.effects` has the effect of each event on the fields.

    >>> BY_LINE["failed"].name
    'failures'
"""

from __future__ import annotations

from enum import Enum
from itertools import takewhile
from typing import Any, Final, NamedTuple

from rq_core.model.table.machine import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_LOSSES, DEFAULT_PRIORITY

WORD_LENGTH_MAX: Final = 512
"""Maximum number of characters of a field of the kind WORD. A longer text would not fit into an index of PostgreSQL."""


class FieldKind(Enum):
    """The kinds of values that a field may have. In SQL, a number is a BIGINT, and any other kind is a text."""

    WORD = "a short text"
    NUMBER = "a whole number, 0 or more"
    PRIORITY = "one of the four priorities"
    LANE = "priority+scope+scope…"
    MESSAGE = "a text of any length"


class Field(NamedTuple):
    """One field of a job: its names, kind and default."""

    name: str
    kind: FieldKind
    line: str | None = None
    """The field's name in a state line; None: Redis does not keep the field."""
    default: Any = None
    """The field's value if a state line leaves it out."""
    trait: int | None = None
    """The field's position among the traits, from 1; None: the field is not a trait. Traits are the optional fields at
    the end of each event with which a job begins (enqueued, restored, baseline)."""
    given: bool = False
    """True if the producer passes the trait with the job, under the trait's name in a state line. The script
    ``enqueue`` checks the trait's kind, and copies the value into the state line and the event. Scripts compute all
    other traits."""
    meaning: str = ""
    """The meaning of a trait, for the reference of events and tables."""


_K = FieldKind

FIELDS: Final = (
    Field("task", _K.WORD, "task"),
    Field("priority", _K.PRIORITY, "priority", str(DEFAULT_PRIORITY)),
    Field("max_attempts", _K.NUMBER, "attempts", DEFAULT_MAX_ATTEMPTS),
    Field("max_losses", _K.NUMBER, "losses", DEFAULT_MAX_LOSSES),
    Field(
        "unique_name", _K.WORD, "unique", trait=2,
        meaning="the name of a unique job; null: it is not unique",
    ),
    Field(
        "once_ms", _K.NUMBER, "once", trait=3,
        meaning="until when its id is remembered, whether the job is alive or not (Unix ms); null: while it is alive",
    ),
    Field(
        "call_digest", _K.WORD, "call", trait=4,
        meaning="32 hex digits for task and arguments, by which calls with such an id are compared; null: they are not",
    ),
    Field(
        "life", _K.WORD, "life", trait=7,
        meaning="16 hex digits of a durable job that has saved or begun a step: under them `boxes` has its entries",
    ),
    Field(
        "keep_ms", _K.NUMBER, "keep", trait=6, given=True,
        meaning="how long after its end its result is kept in Redis; null: it is not",
    ),
    Field("lane", _K.LANE, "lane"),
    Field("claims", _K.NUMBER, "claim", 0),
    Field("fence", _K.WORD, "fence"),
    Field("worker", _K.WORD, "by"),
    Field("failures", _K.NUMBER, "failed", 0),
    Field("losses", _K.NUMBER, "lost", 0),
    Field(
        "base", _K.WORD, "base", trait=8,
        meaning="FAILURES/LOSSES of a durable job at its last saved step: only those after it count against its limits;"
        " null: 0/0",
    ),
    Field("unknown", _K.NUMBER, "unknown", 0),
    Field("seq", _K.NUMBER, "seq"),
    Field(
        "cost", _K.WORD, "cost", trait=10,
        meaning="how much of each unit a claim takes from the rates that count the unit: tokens:1500,points:3; a unit"
        " that is missing costs 1; null: each costs 1",
    ),
    Field(
        "name_stands", _K.WORD, "stands", trait=5,
        meaning="until when it holds that name: until:MS, until that instant, even if it ends earlier; claim:MS, until"
        " its first claim, for which it is ready by MS at the latest (Unix ms); null: until it ends",
    ),
    Field(
        "expires_ms", _K.NUMBER, "expires", trait=1,
        meaning="its deadline: no claim begins at it or later (Unix ms); null: it has none",
    ),
    Field(
        "waits", _K.WORD, "waits", trait=9,
        meaning="of a parked job the numbers of the entries that it waits for, with commas; null: it is not parked",
    ),
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
)  # fmt: skip
"""Every field of a job, except its id and its state. The fields that a state line has are in the line's order."""

BY_LINE: Final = {field.line: field for field in FIELDS if field.line is not None}
"""The fields of a state line, by their names in the line, in their fixed order."""

STATE_FIELDS: Final = tuple(BY_LINE)
"""The names of a state line's fields, in their fixed order. (The line begins with the state, which has no name.)"""

TRAITS: Final = tuple(
    sorted(
        (field for field in FIELDS if field.trait is not None), key=lambda field: field.trait or 0
    )
)
"""The traits, by position. Traits are the optional fields at the end of each event with which a job begins. A new trait
must come last, because an event may leave out null fields only at the end."""

GIVEN: Final = tuple(field for field in TRAITS if field.given)
"""The traits (optional fields of a job) that a producer passes. In a state line they come directly before the lane,
where the script ``enqueue`` writes them. Some of the other traits come after the lane."""

STAYS: Final = tuple(takewhile(lambda name: name != "lane", STATE_FIELDS))
"""The names of the fields that come before the lane in a state line. Claims do not change these fields."""

COUNTERS: Final = ("claims", "failures", "losses", "unknown")
"""The counters of a job, which begin at 0: null in an event means 0."""
