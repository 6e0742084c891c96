"""The options of a change to a waiting job, and the error for a job that was not changed."""

from __future__ import annotations

from typing import Final, Unpack

from rq_core.app.options import EditOptions, JobOptions, priority_of
from rq_core.app.unknown_options import OF_JOBS, unexpected
from rq_core.errors import InvalidOption, NotEdited, UsageError
from rq_core.protocol.calls.admin import Change

_NAMES: Final = tuple(EditOptions.__annotations__)


def change_of(queue: str, **options: Unpack[EditOptions]) -> Change:
    """Convert the options of an edit to the form that the Lua scripts read.

    Raises InvalidOption, UsageError if no option is given, and TypeError for an unknown option.
    """
    unknown = next((name for name in options if name not in _NAMES), None)
    if unknown is not None:
        error = unexpected("edit() ", unknown, _NAMES, OF_JOBS, "its")
        raise TypeError(f"{error}. A job's arguments stay as they are")
    priority, delay, at = options.get("priority"), options.get("delay"), options.get("at")
    now, expires = options.get("now", False), options.get("expires")
    if now and (delay is not None or at is not None):
        other = "delay" if delay is not None else "at"
        raise InvalidOption.of("now", now, f"does not go with {other}")
    given = JobOptions(queue).changed(delay=delay, at=at, expires=expires)
    due, expires_text = "", "-" if "expires" in options else ""
    if now or delay is not None:
        due = f"+{given.delay_ms}"
    elif at is not None:
        due = str(given.due_ms)
    if expires is not None:
        expires_text = str(given.expires_at_ms or f"+{given.expires_in_ms}")
    level = "" if priority is None else str(priority_of(priority))
    change = Change(level, due, expires_text)
    if change == Change():
        raise UsageError(f"nothing to change: give {', '.join(_NAMES[:-1])} or {_NAMES[-1]}")
    return change


def check_line(line: str) -> None:
    """Raise InvalidOption if ``line`` is not text. ``line`` is the state line that the job must still have: the text
    with which Redis stores the job's state."""
    given: object = line
    if not isinstance(given, str):
        must = "must be the job's state line, as `rq-core job ID --json` prints it"
        raise InvalidOption.of("line", given, must)


_WHY: Final = {
    "running": "it runs, and only a job that waits can be edited. Cancel it, or edit it while it waits for a retry",
    "cancelling": "it runs and was asked to stop, and only a job that waits can be edited. Enqueue it again when it"
    " has ended",
    "dead": "it is dead, and only a job that waits can be edited. Requeue it first: `rq-core requeue {id}`",
    "gone": "Redis does not have it, so it may have ended: see `rq-core audit history {id} --audit URL`. Enqueue it"
    " again if it should run again",
    "changed": "its state line is another one by now. Read the line again, and decide again",
    "never": "it would become ready at its deadline or later, so no worker could begin it. Give a later deadline, or an"
    " earlier time",
}


def check_outcome(queue: str, job_id: str, outcome: str) -> None:
    """Raise NotEdited if ``outcome``, the answer of the Lua script, says that the job was not edited."""
    if outcome in _WHY:
        why = _WHY[outcome].format(id=job_id)
        raise NotEdited(queue=queue, id=job_id, outcome=outcome, why=why)
