"""State lines. A state line is a text with the state and the fields of a live job. Scripts write it into the key
``state``.

    running task=send claim=1 fence=1795225746504-88 by=w-3f2a seq=7 since=1795225746504

A plain job that has only waited since its enqueue has no line in ``state`` if its JSON is short. Its fields are in
the first line of its value in the key ``jobs``, before the JSON. They stay there when the job later gets a line in
``state``:

    task=send seq=7 since=1795225746504
    {"task":"send","args":{"to":"a@b.c"}}

If the job dies of an error, ``error=`` and the error as JSON replace the first line of the value.

:func:`line_of_job` returns a job's line from either key. :func:`read_state_line` parses a line. :func:`read_job` parses
and checks a line, for the doctor.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rq_core import errors
from rq_core.errors import QueueDamaged
from rq_core.model.events import JobRecord
from rq_core.model.job import JobError
from rq_core.model.lib.text import number_in, shorten
from rq_core.model.limits import scopes
from rq_core.model.table.fields import BY_LINE, STATE_FIELDS, FieldKind
from rq_core.model.table.machine import (
    CLAIMED_STATES,
    DEFAULT_PRIORITY,
    PRIORITIES,
    Priority,
    State,
)

SHOWN_MAX: Final = 100
"""Maximum number of characters of an unreadable line that a message shows."""
LINE_MAX: Final = 20 * 1024
"""Maximum number of bytes of a state line: 16 KiB for the lane (the longest lane that the audit database stores), and 4
KiB for the other fields."""
TOO_LONG: Final = "too long: "
"""The prefix of a script's reply in place of a state line that is longer than LINE_MAX. The line's size in bytes
follows. With this reply, readers need not load the line."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state and the fields of a live job, from its state line."""

    id: str
    queue: str
    state: State
    fields: Mapping[str, str]
    """The other fields of the line, as text: task, claim, fence, seq, due, since, by…"""
    spec: str | None = None
    error: JobError | None = None
    """The error that killed the job; None if the job died for another reason or is not dead, or if the error was not
    read."""

    @property
    def since_ms(self) -> int | None:
        """Unix ms at which the job entered its state; None if the line lacks this time."""
        return number_in(self.fields.get("since"))


def line_of_job(line: str | None, value: str | None) -> str | None:
    r"""Return a job's state line; None if Redis does not have the job.

    ``line`` is the job's field in the key ``state``. Without it, the line is made from ``value``, the job's field in
    the key ``jobs``. ``value`` may be cut off after its first line. The caller must read ``state`` before ``jobs``.

    >>> line_of_job(None, 'task=send seq=7 since=5\n{"task":"send"}')
    'ready task=send seq=7 since=5'
    """
    if line is not None or value is None:
        return line
    head = value.partition("\n")[0]
    return f"{State.READY} {head}" if head.startswith("task=") else None


def lines_of_jobs(lines: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the state lines of all jobs by id, from all fields of the keys ``state`` and ``jobs``."""
    found = dict(lines)
    for job_id, value in values.items():
        line = line_of_job(lines.get(job_id), value)
        if line is not None:
            found[job_id] = line
    return found


def read_state_line(queue: str, job_id: str, line: str, spec: str | None = None) -> JobState:
    """Parse a state line. Raises QueueDamaged if the state is unknown or the line is too long."""
    if size := _size_of_long(line):
        raise errors.QueueDamaged(
            queue=queue, why=f"the state of job {job_id} has {_says_long(size)}"
        )
    word, _, rest = line.partition(" ")
    try:
        state = State(word)
    except ValueError:
        raise errors.QueueDamaged(
            queue=queue, why=f"the state of job {job_id} reads {shorten(line, SHOWN_MAX)!r}"
        ) from None
    fields = dict(part.split("=", 1) for part in rest.split(" ") if "=" in part)
    return JobState(job_id, queue, state, fields, spec)


def read_state_lines(
    queue: str, lines: Iterable[tuple[str, str | None]]
) -> tuple[list[JobState], list[str]]:
    """Parse the state lines of jobs, given as pairs (id, line). A job without a line is left out.

    Returns the jobs, and a message for each unreadable line, so that a damaged line does not hide the other jobs.
    """
    found, damaged = [], []
    for job_id, line in lines:
        try:
            if line:
                found.append(read_state_line(queue, job_id, line))
        except errors.QueueDamaged as error:
            damaged.append(str(error))
    return found, damaged


def _size_of_long(line: str) -> int:
    """Return the size in bytes of a state line that is longer than LINE_MAX; 0 for a shorter line. ``line`` may also
    be a reply that begins with TOO_LONG, in place of the long line."""
    if line.startswith(TOO_LONG):
        return int(line.removeprefix(TOO_LONG))
    return len(line) if len(line) > LINE_MAX else 0


def _says_long(size: int) -> str:
    return f"{size:,} bytes, and scripts write {LINE_MAX:,} at most"


class StoredJob(NamedTuple):
    """A job's state and fields, from a state line that was checked strictly."""

    state: State
    fields: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """Return a field as a number; None if the line does not have the field."""
        value = self.fields.get(name)
        return None if value is None else int(value)

    @property
    def lane(self) -> str | None:
        """The job's lane; None if the job has no scopes."""
        return self.fields.get("lane")

    @property
    def rank(self) -> int:
        """The number of the job's priority, from 0 (critical) to 3 (low)."""
        return PRIORITIES.index(Priority(self.fields.get("priority", DEFAULT_PRIORITY)))

    def value(self, name: str) -> Any:
        """Return the value of a field, in the type that a JobRecord has. If the line lacks the field, return the
        field's default."""
        field = BY_LINE[name]
        found = self.number(name) if field.kind is FieldKind.NUMBER else self.fields.get(name)
        return field.default if found is None else found


def _needed(state: State) -> set[str]:
    """Return the fields without which a state line is invalid."""
    claim = {"fence", "by", "claim"} if state in CLAIMED_STATES else set[str]()
    # A scheduled job may have no place in line yet; if its deadline comes first, it is dead without one.
    own = {State.SCHEDULED: {"due"}, State.PARKED: {"seq", "waits"}, State.DEAD: set[str]()}
    return {"task", "since"} | claim | own.get(state, {"seq"})


_NEEDED: Final = {state: _needed(state) for state in State}


def read_job(job_id: str, line: str) -> StoredJob:
    """Parse a state line strictly. Raises ValueError, with a message for users, if the line differs from what scripts
    write."""
    if size := _size_of_long(line):
        raise ValueError(f"it has {_says_long(size)}")
    try:
        read = read_state_line("", job_id, line)
    except QueueDamaged:
        raise ValueError("its state is unknown") from None
    fields = {}
    for name, value in read.fields.items():
        if name not in BY_LINE:
            raise ValueError(f"it has a field {name}")
        if BY_LINE[name].kind is FieldKind.NUMBER and not (value.isascii() and value.isdigit()):
            raise ValueError(f"{name} is not a number")
        fields[sys.intern(name)] = value  # All jobs share the text of the name.
    job = StoredJob(read.state, fields)
    if job.fields.get("priority", DEFAULT_PRIORITY) not in PRIORITIES:
        raise ValueError("its priority is unknown")
    if job.lane is not None and not _is_lane(job.lane):
        raise ValueError("its lane is invalid")
    if missing := sorted(_NEEDED[job.state] - job.fields.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    return job


@lru_cache(maxsize=4096)
def _is_lane(text: str) -> bool:
    rank, *names = text.split("+")
    known = rank.isascii() and rank.isdigit() and int(rank) < len(PRIORITIES)
    return known and bool(names) and all(map(scopes.is_scope, names))


def write_line(state: State, fields: Mapping[str, Any]) -> str:
    """Return a state line in the form that state.lua writes."""
    return " ".join(
        [str(state), *(f"{name}={fields[name]}" for name in STATE_FIELDS if name in fields)]
    )


def fields_of(record: JobRecord) -> dict[str, Any]:
    """Return the fields of a record that differ from their defaults, by their names in a state line."""
    values = ((line, getattr(record, field.name), field.default) for line, field in BY_LINE.items())
    return {line: value for line, value, default in values if value != default}


def line_of(record: JobRecord, capped: Container[str] = ()) -> str | None:
    """Return the state line that a live job must have according to its record; None if the record does not determine
    the line.

    ``capped`` has the scopes with a stored limit. The first limit of a task moves the task's jobs into lanes, and no
    event records this.
    """
    if not record.complete or record.state is None:
        return None
    fields = fields_of(record)
    if f"{scopes.TASK}={record.task}" in capped:
        rank = PRIORITIES.index(Priority(record.priority or DEFAULT_PRIORITY))
        fields["lane"] = with_task(record.lane, rank, f"{scopes.TASK}={record.task}")
    line = write_line(record.state, fields)
    try:
        read_job(record.id, line)
    except ValueError:
        return None
    return line


def with_task(lane: str | None, rank: int, scope: str) -> str:
    """Return the lane that a job has once its task has a limit: ``lane`` with the scope of the task added. A job
    without a lane (None) has the priority ``rank``."""
    head = str(rank) if lane is None else lane[0]
    return scopes.lane_name(int(head), [scope, *scopes.scopes_of(lane or "")])


def without_task(lane: str | None) -> str | None:
    """Return a lane without the scope of a task; None if the lane has no other scope."""
    names = [s for s in scopes.scopes_of(lane or "") if scopes.family_of(s) != scopes.TASK]
    return scopes.lane_name(int(lane[0]), names) if lane and names else None
