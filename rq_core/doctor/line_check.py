"""Compares a job's state line with the log. Finds the fields that differ, and restores them from the log."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

from rq_core.model.durable.boxes import header_in
from rq_core.model.events import JobRecord
from rq_core.model.state_line import (
    StoredJob,
    fields_of,
    line_of,
    read_job,
    without_task,
    write_line,
)
from rq_core.model.table.fields import BY_LINE, FieldKind

PUT_BACK: Final = frozenset(
    {
        "unique", "stands", "expires", "due", "priority", "seq", "life", "base", "waits", "attempts", "losses",
    }
)  # fmt: skip
"""The fields that a repair restores from the log, because indexes, saved steps or the job's JSON must agree with them
and only scripts change them. Any other field keeps its value in Redis, and the repair appends an event with this value
to the log."""


_ALL: Final = tuple(
    (name, field.name, field.kind is FieldKind.NUMBER, field.default)
    for name, field in BY_LINE.items()
)
_LAST: Final = tuple(each for each in _ALL if each[0] in ("due", "since"))
"""The fields that are compared if the log lacks a job's earlier events."""
_DEFAULTS: Final = tuple(default for *_, default in _ALL)
_POSITIONS: Final = {each[0]: (at, each[2]) for at, each in enumerate(_ALL)}
"""Field of a state line → (its position in _ALL, whether it is a number)."""
_logged: Final = attrgetter(*(of_record for _, of_record, *_ in _ALL))


def unlike(job: StoredJob, record: JobRecord) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ between a job's state line and the log: (name in the line, value in the line, value
    in the log)."""
    fields = job.fields
    if record.complete and _values(fields) == _logged(record):
        return  # Most jobs, found without a look at each field.
    for name, of_record, is_number, default in _ALL if record.complete else _LAST:
        logged, text = getattr(record, of_record), fields.get(name)
        actual: Any = default if text is None else int(text) if is_number else text
        # A task's first limit moves its jobs into lanes without an event.
        if logged != actual and (name != "lane" or without_task(logged) != without_task(actual)):
            yield name, actual, logged


def _values(fields: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the values of a state line's fields, in the order of ``_ALL``."""
    values = [*_DEFAULTS]
    for name, text in fields.items():
        at, is_number = _POSITIONS[name]
        values[at] = int(text) if is_number else text
    return tuple(values)


def line_by(
    record: JobRecord,
    job: StoredJob | None,
    caps: Container[str],
    boxes: Mapping[str, str],
    *,
    in_state: bool,
    has_holes: bool,
) -> str | None:
    """Return the state line that a job should have according to its log.

    Return None if the line is right, or if the log cannot correct it. If the line is lost, the result is made from the
    log alone. Otherwise it is the current line, with the fields in PUT_BACK from the log. A line counts as lost in
    three cases:

    - The line is missing or unreadable (``job``: None).
    - The line has another state than the log, and the log has no holes. If the log knows only the claim in force, the
      job's line gets the claim's fields instead.
    - The job has no field in the key ``state`` (``in_state`` is false), and its line differs from the log.

    ``boxes``: the members of the key ``boxes``. A job's life is the id of its box, which has its saved steps. The line
    keeps its life if this box names the job, and Redis has no box with the life that the log names: with that life, the
    job would lose its steps.
    """
    if job is None:
        return line_of(record, caps)
    if job.state is not record.state:
        if has_holes:
            return None
        return line_of(record, caps) if record.complete else _claimed(job, record)
    differs = {name for name, _, _ in unlike(job, record)} if record.complete else set()
    if differs and not in_state:
        return line_of(record, caps)
    changed = differs & PUT_BACK
    if "life" in changed and _has_box_alone(job, record, boxes):
        changed -= {"life"}
    if not changed:
        return None
    told = fields_of(record)
    fields = {name: value for name, value in job.fields.items() if name not in changed}
    mended = write_line(job.state, fields | {name: told[name] for name in changed & told.keys()})
    try:
        read_job(record.id, mended)
    except ValueError:
        return None
    return mended


def _has_box_alone(job: StoredJob, record: JobRecord, boxes: Mapping[str, str]) -> bool:
    """Return whether the box that the job's state line names has the job in its header, while the box that the log
    names is missing. A box has the saved steps of a job."""
    header = header_in(boxes.get(job.fields.get("life", "")))
    return header is not None and header.job_id == record.id and record.life not in boxes


def _claimed(job: StoredJob, record: JobRecord) -> str | None:
    """Return the job's state line, with its current claim from the log; None if the log lacks this claim."""
    if record.fence is None or record.state is None:
        return None
    told = {
        "claim": record.claims,
        "fence": record.fence,
        "by": record.worker,
        "since": record.since_ms,
    }
    return write_line(record.state, {**job.fields, **told})
