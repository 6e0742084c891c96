"""Finds what a fork copies: the entries (steps, waits and sleeps) that a durable job has saved before a step. The
entries are in Redis or in the audit log."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.many.copying import NAME_LOG, wait_for_log
from rq_core.errors import NotCopied
from rq_core.model import plugins
from rq_core.model.durable.boxes import StepEntry
from rq_core.model.durable.forks import (
    ForkOrigin,
    box_in_log,
    copied_entries,
    entry_number,
    open_maps,
    origin_header,
    origin_of,
    steps_in,
    without_value,
)
from rq_core.model.headers import read_headers
from rq_core.model.job import read_spec

if TYPE_CHECKING:
    from rq_core.app.producer import Producer
    from rq_core.model.filters.copy_reader import CopyReader

_SHOWN_MAX: Final = 20
"""Maximum number of names that a message lists."""


class _Box(NamedTuple):
    """The saved steps (the box) of the job that a fork copies."""

    life: str
    """The id of the job's saved steps. Empty if the job has saved nothing."""
    entries: dict[int, StepEntry]
    size: int
    """Number of entries (steps, waits and sleeps) that the job has. ``entries`` may lack some of them."""


def origin_in(
    app: Producer, log: CopyReader | None, queue: str, job_id: str, step: str | None
) -> str:
    """Return the value of the fork's header that names the job to copy, and the step from which the fork runs. With
    ``step=None``, the fork continues after everything that the job has saved.

    Raises NotCopied if what the job has saved before the step cannot be copied. Raises LogBehind if the audit log must
    be read and lacks the queue's last events.
    """

    def refused(why: str) -> NotCopied:
        return NotCopied(queue=queue, id=job_id, why=why)

    box = _box_in_redis(app, queue, job_id)
    logged = None
    if box is None:
        logged = _box_in_log(app, log, queue, job_id)
        if logged is None:
            raise refused(
                f"Redis does not have it. {NAME_LOG}"
                if log is None
                else "neither Redis nor the audit log has the job with its steps"
            )
        life, kept = logged
        box = _Box(life, kept.steps, kept.entries)
    own = _own_origin(app, log, queue, job_id)
    if own is not None and box.size < own.copied:
        raise refused(
            f"it is a fork that has not taken over all steps of {own.job_id} yet: fork that job"
        )
    if not box.life:
        raise refused("it has saved no step, so a copy (`app.copy`) is the same")
    before = box.size + 1
    if step is not None:
        number = entry_number(box.entries, step)
        if number is None:
            raise refused(f"it has no step {step!r}, {_steps_say(box)}")
        before = number
    lacking = [] if logged is None else without_value(logged[1], before)
    if lacking:
        only = f"the log has only a digest of what step {lacking[0]!r} returned"
        keeps = (
            "From its first mirror on, a log keeps the values of a task with"
            ' `audit_result="full"`, and of a flow that is enqueued with `audit_result="full"`'
        )
        raise refused(f"it has left Redis, and {only}. {keeps}")
    if opened := open_maps(box.entries, box.life, before):
        where = "at its end" if step is None else f"before step {step!r}"
        name = repr(opened[0])
        raise refused(f"the map or run {name} was not over {where}: name {name} or an earlier step")
    try:
        copied = copied_entries(box.entries, box.life, before)
    except ValueError:
        copied = None
    if copied is None:
        run = f"run `rq-core doctor {queue}`"
        where = run if logged is None else "the log lacks events about them"
        raise refused(f"some of its steps cannot be read: {where}")
    return origin_header(ForkOrigin(job_id, box.life, before, len(copied)))


def _box_in_redis(app: Producer, queue: str, job_id: str) -> _Box | None:
    """Read the saved steps of a job from Redis. Return None if Redis does not have the job. Raises NotCopied if Redis
    has the job and has lost its steps."""
    found = app.client.run(app.client.calls.reads.steps(job_id, [queue]))
    if found is None:
        return None
    if found.is_lost:
        # The job may have left Redis between the two reads.
        found = app.client.run(app.client.calls.reads.steps(job_id, [queue]))
    if found is None:
        return None
    if found.is_lost:
        why = f"Redis has lost its steps: `rq-core audit restore --queue {queue}` may put them back"
        raise NotCopied(queue=queue, id=job_id, why=why)
    return _Box(found.life or "", dict(found.entries), found.size)


def _own_origin(
    app: Producer, log: CopyReader | None, queue: str, job_id: str
) -> ForkOrigin | None:
    """Return the job from which a job was forked. Return None for a job that is no fork, or whose headers are lost."""
    job = app.client.run(app.client.calls.reads.job(job_id, [queue]))
    spec = job.spec if job is not None else log and log.specs(queue, [job_id]).get(job_id)
    with suppress(ValueError, RecursionError):
        headers = read_spec(spec or "").headers_json
        return origin_of(read_headers(headers)) if headers else None
    return None


def _box_in_log(app: Producer, log: CopyReader | None, queue: str, job_id: str) -> Any:
    """Read the saved steps of a job from the audit log. Return the id of these steps, and the steps; None if the log
    lacks them. Raises LogBehind."""
    if log is None or app.audit_url is None:
        return None
    wait_for_log(app.client, log, queue)
    return box_in_log(plugins.history_reader()(app.audit_url, job_id, queue))


def _steps_say(box: _Box) -> str:
    names = steps_in(entry for _, entry in sorted(box.entries.items()))
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    if not names:
        return "nor any other"
    return f"but {', '.join(names[:_SHOWN_MAX])}{more}. Without a step, a fork goes on behind all of them"
