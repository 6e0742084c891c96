"""Tells tasks of their jobs that died: ``@app.task(on_dead=…)``.

Jobs die in several scripts, and of some deaths no worker hears: a poison job's worker is gone. So workers look at the
queue's index of the dead, from where they last looked, and hand over one job of the hook's own task per death. Where
they last looked stands in ``meta`` (``on_dead_ms``); it moves on once the hooks' jobs are in the queue. A hook is
therefore told at least once, whoever dies meanwhile, and its job is retried and audited like any other.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rq_core.job import NewJob, profile, read_spec
from rq_core.keys import queue_keys
from rq_core.settings import BATCH_MAX

if TYPE_CHECKING:
    from rq_core.operations import Operations
    from rq_core.plans import Plan
    from rq_core.task import Task

LOOK_EVERY: Final = 5.0
"""Seconds between two looks."""
DEATHS_MAX: Final = 250
"""Most deaths in one look."""


@dataclass(frozen=True)
class DeadJob:
    """What a hook is told of a job that died."""

    id: str
    queue: str
    task: str
    arguments: dict[str, Any]
    """As JSON has them."""
    reason: str
    """attempts_spent, gave_up, not_retried, poison, unknown_task…"""
    claims: int
    failures: int
    losses: int
    died_at_ms: int
    """Unix milliseconds."""
    event: str
    """The same each time that this death is told, and of no other."""


Hook = Callable[[DeadJob], Any]


def hook_name(task: str) -> str:
    """The name of the task that runs a task's hook."""
    return f"{task}:on_dead"


def handler_of(hook: Hook) -> Callable[[DeadJob], Any]:
    """The function of that task."""
    if inspect.iscoroutinefunction(hook):

        async def told_async(job: DeadJob) -> None:
            await hook(job)

        return told_async

    def told(job: DeadJob) -> None:
        hook(job)

    return told


def tell(operations: Operations, queue: str, tasks: Mapping[str, Task[Any, Any]]) -> Plan[bool]:
    """Hand over a hook's job for each death since the last look. Returns whether more are left."""
    keys = queue_keys(queue, operations.prefix)
    # Asked beside something of the queue: in a cluster it is its shard's clock that counts.
    time, _ = yield from operations.ask([["TIME"], ["HGET", keys("meta"), FIELD]], queue)
    # What dies in this millisecond may not all be there yet.
    upto = int(time[0]) * 1000 + int(time[1]) // 1000 - 1
    _, seen = yield from operations.ask(
        [["HSETNX", keys("meta"), FIELD, upto], ["HGET", keys("meta"), FIELD]], queue
    )
    span = [f"({seen}", upto, "WITHSCORES", "LIMIT", 0, DEATHS_MAX]
    (flat,) = yield from operations.ask([["ZRANGEBYSCORE", keys("dead"), *span]], queue)
    ids = list(flat[::2])
    more = len(ids) == DEATHS_MAX
    if more:
        # Those that died with the last one may be cut in two: all but them now, unless all died together.
        last = flat[-1]
        kept = [i for i, at in zip(ids, flat[1::2], strict=True) if at != last]
        if kept:
            ids, upto = kept, int(float(flat[2 * len(kept) - 1]))
        else:
            upto = int(float(last))
            together = ["ZRANGEBYSCORE", keys("dead"), last, last, "LIMIT", 0, BATCH_MAX]
            (ids,) = yield from operations.ask([together], queue)
    if ids:
        lines, specs = yield from operations.ask(
            [["HMGET", keys("state"), *ids], ["HMGET", keys("jobs"), *ids]], queue
        )
        told = [
            job
            for job_id, line, spec in zip(ids, lines, specs, strict=True)
            if line and spec and (job := _job_of(queue, job_id, line, spec, tasks)) is not None
        ]
        if told:
            yield from operations.enqueue(told)
    if ids or int(seen) + LAG_MS < upto:
        yield from operations.ask([["HSET", keys("meta"), FIELD, upto]], queue)
    return more


FIELD: Final = "on_dead_ms"
LAG_MS: Final = 60_000
"""How far behind the mark may be where nothing has died."""


def _job_of(
    queue: str, job_id: str, line: str, spec: str, tasks: Mapping[str, Task[Any, Any]]
) -> NewJob | None:
    # Imported here: whoever only defines tasks needs none of it.
    from rq_core.answers import read_state_line

    job = read_state_line(queue, job_id, line, spec)
    if job.state != "dead" or hook_name(job.fields.get("task", "")) not in tasks:
        return None
    facts = job.fields
    dead = DeadJob(
        id=job_id,
        queue=queue,
        task=facts["task"],
        arguments=json.loads(read_spec(spec).args_json),
        reason=facts.get("reason", ""),
        claims=int(facts.get("claim", 0)),
        failures=int(facts.get("failed", 0)),
        losses=int(facts.get("lost", 0)),
        died_at_ms=int(facts["since"]),
        event=f"{job_id}/{facts['since']}",
    )
    name = hashlib.sha256(f"{queue}/{dead.event}".encode()).hexdigest()[:32]
    return NewJob(
        f"on-dead-{name}", queue, profile(hook_name(dead.task)), json.dumps({"job": asdict(dead)})
    )
