"""``rq-core jobs``: the jobs of a queue, one by one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.inspect import document_of, unknown_task
from rq_core.cli.options import (
    connect,
    json_option,
    known_queues,
    limit_option,
    print_json,
    server_options,
    tell_damaged,
)
from rq_core.cli.text import print_records, say, span
from rq_core.model.machine import DEFAULT_PRIORITY, State
from rq_core.model.text import number_in
from rq_core.protocol.job_reads import MEMBERS_MAX

if TYPE_CHECKING:
    from rq_core.model.state_line import JobState
    from rq_core.protocol.presence import KnownTasks

SHOWN_MAX: Final = 10_000
_ALIVE: Final = tuple(state for state in State if state is not State.DEAD)


@click.command()
@click.argument("queue")
@click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in State]),
    multiple=True,
    help="Only jobs in this state; may be given several times. By default all but dead.",
)
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@limit_option("jobs", SHOWN_MAX)
@server_options
@json_option
def jobs(
    queue: str,
    states: tuple[str, ...],
    task: str | None,
    limit: int,
    redis_url: str,
    prefix: str,
    *,
    as_json: bool,
) -> None:
    """List the jobs of QUEUE that run, wait, or are scheduled, and name those of whose task no live worker has told.

    Running jobs come first, then ready ones, then scheduled ones. A job that moves while the list is
    read may be missing.
    """
    wanted = [State(state) for state in states] or _ALIVE
    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
        found = client.run(client.calls.reads.jobs(queue, states=wanted, task=task, limit=limit))
        known = client.run(client.calls.reads.known_tasks(queue))
    if as_json:
        print_json(
            [
                document_of(each) | {"task_known": known.knows(each.fields.get("task"))}
                for each in found.jobs
            ]
        )
        tell_damaged(found.damaged)
        return
    now_ms = time.time() * 1000
    of_task = f" of task {task}" if task is not None else ""
    print_records(
        ("job", "state", "for", "task", ""),
        [
            (
                each.id,
                str(each.state),
                _since(each, now_ms),
                each.fields.get("task", "?"),
                _notes(each, known, now_ms),
            )
            for each in found.jobs
        ],
        empty=f"no jobs{of_task} in {queue} are {_either(wanted)}",
        whole=("job", "state"),
    )
    if found.cut:
        say(
            f"looked at {MEMBERS_MAX:,} of the queue's jobs and stopped: --state leaves out the others"
        )
    elif found.more:
        say(f"the first {len(found.jobs):,}; --limit shows more")
    if not known.workers:
        say(f"no worker runs for {queue}")
    tell_damaged(found.damaged)


def _either(states: list[State] | tuple[State, ...]) -> str:
    *first, last = map(str, states)
    return f"{', '.join(first)} or {last}" if first else last


def _since(job: JobState, now_ms: float) -> str:
    since_ms = number_in(job.fields.get("since"))
    return "?" if since_ms is None else span(now_ms - since_ms)


def _notes(job: JobState, known: KnownTasks, now_ms: float) -> str:
    fields: dict[str, Any] = dict(job.fields)
    notes = [unknown_task(job, known)]
    due_ms = number_in(job.fields.get("due"))
    if job.state is State.SCHEDULED and due_ms is not None:
        left = due_ms - now_ms
        notes.append(f"due in {span(left)}" if left > 0 else f"due since {span(-left)}")
    if fields.get("by"):
        notes.append(f"by {fields['by']}")
    if fields.get("priority", str(DEFAULT_PRIORITY)) != str(DEFAULT_PRIORITY):
        notes.append(f"{fields['priority']} priority")
    if fields.get("failed"):
        notes.append(f"failures: {fields['failed']}")
    if fields.get("lost"):
        notes.append(f"losses: {fields['lost']}")
    if fields.get("lane"):
        notes.append(f"lane {fields['lane']}")
    if job.state is State.DEAD:
        notes.append(fields.get("reason", "?"))
    return "; ".join(filter(None, notes))
