"""Finds what a fork copies: the entries that a durable job has saved before a step, in Redis or in the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.many.copying import wait_for_log
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
    steps_in,
    without_value,
)

if TYPE_CHECKING:
    from rq_core.app.producer import Producer
    from rq_core.model.filters.copy_reader import CopyReader

_SHOWN_MAX: Final = 20
"""Maximum number of names that a message lists."""


class _Box(NamedTuple):
    """The box of an origin."""

    life: str
    entries: dict[int, StepEntry]
    size: int
    """Number of entries of the box; ``entries`` may lack some of them."""


def origin_in(
    app: Producer, log: CopyReader | None, queue: str, job_id: str, step: str | None
) -> str:
    """Return the value of the header of a fork that runs from a step on; None: behind all that the job has saved.

    Raises NotCopied if the entries before the step cannot be copied, and LogBehind if the log must be read, and no
    mirror runs.
    """

    def refused(why: str) -> NotCopied:
        return NotCopied(queue=queue, id=job_id, why=why)

    box = _box_in_redis(app, queue, job_id)
    logged = None
    if box is None:
        logged = _box_in_log(app, log, queue, job_id)
        if logged is None:
            raise refused("neither Redis nor an audit log has the job with its steps")
        life, kept = logged
        box = _Box(life, kept.steps, kept.entries)
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
            'Of tasks with audit_result="full", a log keeps the values, from its first mirror on'
        )
        raise refused(f"it has left Redis, and {only}. {keeps}")
    if opened := open_maps(box.entries, box.life, before):
        where = "at its end" if step is None else f"before step {step!r}"
        name = repr(opened[0])
        raise refused(
            f"not all children of {name} had ended {where}: name {name} or an earlier step"
        )
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
    """Return the box of a job; None if Redis does not have the job. Raises NotCopied if the box is lost or empty."""
    found = app.client.run(app.client.calls.reads.steps(job_id, [queue]))
    if found is None:
        return None
    if found.is_lost:
        why = f"Redis has lost its steps: `rq-core audit restore {queue}` may put them back"
        raise NotCopied(queue=queue, id=job_id, why=why)
    if found.life is None:
        why = "it has saved no step, so a copy (`app.copy`) is the same"
        raise NotCopied(queue=queue, id=job_id, why=why)
    return _Box(found.life, dict(found.entries), found.size)


def _box_in_log(app: Producer, log: CopyReader | None, queue: str, job_id: str) -> Any:
    """Return the id and the content of a job's box, from the log; None if no log has it. Raises LogBehind."""
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
