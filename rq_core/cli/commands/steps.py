"""The commands ``steps``, ``children``, ``signal`` and ``fork`` of ``rq-core``, which concern durable jobs (jobs with
saved steps)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from rq_core.cli.options import (
    actor,
    audit_url_option,
    audited_options,
    connect,
    json_option,
    known_queues,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.text import print_table, say
from rq_core.model.durable.boxes import signal_of
from rq_core.model.durable.children import read_child_wait
from rq_core.model.table.machine import State
from rq_core.protocol.calls.boxes import Sending, Sent
from rq_core.views.steps import HEAD, end_of, error_of_child, step_documents, step_row, steps_say

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.protocol.reads.box_reads import SavedSteps


@click.command()
@click.argument("job_id", metavar="ID")
@queue_option
@click.option("--values", is_flag=True, help="Show what each step returned, as JSON.")
@server_options
@json_option
def steps(
    job_id: str, queue: str | None, redis_url: str, prefix: str, *, values: bool, as_json: bool
) -> None:
    """Show the steps of the durable job ID.

    A step "in doubt" was begun but not saved: it may or may not have happened. A wait or a sleep has until when it
    lasts; it is "over" if no signal came until then. The steps of a job that has left Redis
    are in its audit log: `rq-core audit history ID --audit URL`.
    """
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        found = client.run(client.calls.reads.steps(job_id, where))
    if found is None:
        raise click.ClickException(
            f"no live job {job_id} in {', '.join(where) or 'any queue'}: its steps leave Redis with it. If the queue is"
            f" mirrored, `rq-core audit history {job_id} --audit URL` knows them"
        )
    if as_json:
        print_json(step_documents(found, with_values=True))
        return
    now_ms = time.time() * 1000
    rows = [
        [*step_row(number, each, now_ms), *([each.value or ""] if values else [])]
        for number, each in found.entries.items()
    ]
    print_table([*HEAD, *(["value"] if values else [])], rows, empty=_none(job_id, found))


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--failed", is_flag=True, help="Show only the children that did not succeed.")
@click.option(
    "--again",
    is_flag=True,
    help="Wake the job ID, so that it looks at its children now. It then lists nothing.",
)
@queue_option
@audited_options
@server_options
@json_option
def children(
    job_id: str,
    queue: str | None,
    by: str | None,
    reason: str,
    redis_url: str,
    prefix: str,
    *,
    failed: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Show the children of the durable job ID, how each has ended, and the errors of dead children.

    "saved" is a child whose result the job has saved. A child that is "gone" is unknown to Redis: it was
    deleted, or Redis has lost it.

    A parked job looks at its children when a worker reports the end of one. If no worker did, it looks by itself, in
    the worst case an hour later. --again lets it look now; the log has --by and --reason.
    """
    if again:
        with connect(redis_url, prefix) as client:
            _wake(client, job_id, known_queues(client, queue), actor(by), reason, as_json=as_json)
        return
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        found = client.run(client.calls.families.children(job_id, where))
        if found is None:
            raise _not_alive(client, job_id, where)
        ends: dict[str, str] = {}
        errors: dict[str, str] = {}
        for each in {child.queue for child in found}:
            asked = [c.id for c in found if c.queue == each and not c.is_saved]
            looked = client.run(client.calls.endings.look(each, asked)) if asked else {}
            ends |= {child: end_of(end) for child, end in looked.items()}
            errors |= {child: error_of_child(end) for child, end in looked.items()}
    states = {
        child.id: "saved" if child.is_saved else ends.get(child.id, "alive") for child in found
    }
    if failed:
        found = [
            child for child in found if states[child.id] not in ("saved", "succeeded", "alive")
        ]
    if as_json:
        print_json(
            [
                {**c._asdict(), "state": states[c.id], "error": errors.get(c.id) or None}
                for c in found
            ]
        )
        return
    rows = [[c.map, c.number, states[c.id], c.queue, c.id, errors.get(c.id, "")] for c in found]
    none = f"no child of job {job_id} has failed" if failed else f"job {job_id} has no children"
    print_table(["map", "no", "state", "queue", "id", "error"], rows, empty=none)


def _wake(
    client: Client, job_id: str, queues: list[str], by: str, reason: str, *, as_json: bool
) -> None:
    """Wake a parked job so that it checks all its children, by the signal that one of them has ended."""
    job = client.run(client.calls.reads.job(job_id, queues))
    if job is None:
        raise _not_alive(client, job_id, queues)
    steps = client.run(client.calls.reads.steps(job_id, [job.queue]))
    numbers = filter(str.isdecimal, (job.fields.get("waits") or "").split(","))
    entries = [] if steps is None else [steps.entries.get(int(number)) for number in numbers]
    waits = [each.name for each in entries if each is not None and read_child_wait(each.name)]
    if not waits:
        if job.state in (State.READY, State.SCHEDULED):
            raise click.ClickException(
                f"job {job_id} is {job.state}, not parked: it looks when a worker claims it"
            )
        advice = f": run `rq-core requeue {job_id}`" if job.state == State.DEAD else ""
        raise click.ClickException(
            f"job {job_id} is {job.state} and waits for no child, so it cannot look{advice}"
        )
    life = (steps and steps.life) or ""
    record = Sending(job_id, signal_of(waits[0]), "", "null", life)
    sent = client.run(client.calls.mail.signal(job.queue, record, by=by, why=reason))
    if sent.outcome not in ("woken", "sent"):
        raise click.ClickException(f"job {job_id} was not woken: {sent.outcome}")
    if as_json:
        print_json({"queue": job.queue, "outcome": sent.outcome})
    else:
        say(f"{job_id}: it is ready, and looks at its children when a worker runs it")


def _not_alive(client: Client, job_id: str, queues: list[str]) -> click.ClickException:
    """Return the error for a job that is not in Redis. If Redis keeps the job's outcome, the error gives it."""
    for queue in queues:
        end = client.run(client.calls.endings.look(queue, [job_id])).get(job_id)
        if end is not None and (word := end_of(end)) != "gone":
            return click.ClickException(
                f"job {job_id} has ended ({word}): Redis does not have the list of its children any more."
                " `rq-core dead QUEUE` lists the children that died"
            )
    return click.ClickException(
        f"no live job {job_id} in {', '.join(queues) or 'any queue'}. If it has ended,"
        f" `rq-core result {job_id} --audit URL` says how"
    )


def _none(job_id: str, found: SavedSteps) -> str:
    return (
        f"job {job_id}: {steps_say(found)}" if found.is_lost else f"job {job_id} has saved no step"
    )


def _sent_says(client: Client, queue: str, record: Sending, sent: Sent) -> str:
    """Return a sentence about the effect of a sent signal. Redis has stored it, or had already got a signal with its
    key."""
    if sent.outcome == "woken":
        return "the job is ready: it was parked for this signal"
    if sent.outcome == "known":
        first = f"signal {sent.number} of the job had this key"
        return f"nothing was sent: {first}, whatever its name and value"
    job = client.run(client.calls.reads.job(record.id, [queue]))
    if job is not None and job.state == State.DEAD:
        return (
            f"the job is dead, and the signal is kept: `rq-core requeue {record.id}` runs the job again. A wait that is"
            f" over takes no signal: for it, `rq-core fork {record.id} --from-step {record.name}`"
        )
    return "the signal waits for the job"


@click.command()
@click.argument("job_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.option(
    "--value",
    "value_json",
    default="null",
    metavar="JSON",
    help="What the signal brings, as JSON; null by default.",
)
@click.option(
    "--key", default="", help="A key by which the same signal, sent again, is not sent twice."
)
@queue_option
@audited_options
@server_options
@json_option
def signal(
    job_id: str,
    name: str,
    value_json: str,
    key: str,
    queue: str | None,
    by: str | None,
    reason: str,
    redis_url: str,
    prefix: str,
    *,
    as_json: bool,
) -> None:
    """Send the signal NAME to the durable job ID, whose handler waits for signals of this name, or will.

    A signal that comes before the wait is kept. The log has who sent it and why.
    """
    from rq_core.app.handles.signal_call import outcome_of, sending_of_json
    from rq_core.model.result_encoding import VALUE_MAX

    try:
        value = json.dumps(json.loads(value_json), ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--value") from None
    if len(value.encode()) > VALUE_MAX:
        raise click.BadParameter(f"has more than {VALUE_MAX:,} bytes", param_hint="--value")
    record = sending_of_json(job_id, name, value, key)
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        for each in where:
            sent = client.run(client.calls.mail.signal(each, record, by=actor(by), why=reason))
            if sent.outcome != "gone":
                break
        else:
            raise click.ClickException(
                f"no live job {job_id} in {', '.join(where) or 'any queue'}. It has ended, or it was never enqueued: if"
                f" the queue is mirrored, `rq-core audit history {job_id} --audit URL` knows it"
            )
        outcome = outcome_of(each, record, sent)
        says = "" if as_json else _sent_says(client, each, record, sent)
    if as_json:
        print_json({"queue": each, "outcome": outcome, "signal": sent.number})
    else:
        say(f"{job_id}: {says}")


@click.command("fork")
@click.argument("job_id", metavar="ID")
@click.option(
    "--from-step",
    metavar="NAME",
    help="The first step that runs; by default, the fork goes on behind all that the job has saved.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The name of the fork; by default one that is made of --from-step. A job is forked once for each name.",
)
@queue_option
@audit_url_option("The audit database, for a job that has left Redis.")
@audited_options
@server_options
@json_option
def fork_job(
    job_id: str,
    from_step: str | None,
    name: str | None,
    queue: str | None,
    audit_url: str | None,
    by: str | None,
    reason: str,
    redis_url: str,
    prefix: str,
    *,
    as_json: bool,
) -> None:
    """Enqueue a copy of the durable job ID that runs from a step on. What the job has saved before this step is copied.

    The job itself does not change. The copy has the options that the workers registered for its task. If the job has
    left Redis, its arguments and what its steps returned come from the audit log, if the log keeps them.
    """
    from rq_core.app.app import App

    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
    with App(redis_url, audit_url, prefix=prefix) as app:
        made = app.fork(
            job_id, from_step=from_step, queue=queue, name=name, by=actor(by), reason=reason
        )
    if as_json:
        print_json({"queue": made.queue, "id": made.id, "duplicate": made.duplicate})
    else:
        say(f"{made.id} {'was enqueued before' if made.duplicate else 'enqueued'} in {made.queue}")
