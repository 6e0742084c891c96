"""The command ``rq-core audit restore``."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import click

from rq_core.cli.options import (
    actor,
    by_option,
    json_option,
    print_json,
    queue_option,
    server_options,
    wait_option,
)
from rq_core.cli.text import say, terminal
from rq_core.model.lib.text import counted
from rq_core.model.limits.limit import FOREVER_MS
from sql_audit.cli.options import audit_option, current, known_watermarks
from sql_audit.cli.text import print_answer, print_marks, progress
from sql_audit.times import readable

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from sql_audit.queries.history import Watermark
    from sql_audit.store.connection.database import Database
    from sql_audit.upkeep.lost import LostJob
    from sql_audit.upkeep.lost_pauses import LostPause
    from sql_audit.upkeep.lost_schedules import LostSchedule
    from sql_audit.upkeep.restore import Applied


@click.command()
@audit_option
@server_options
@queue_option
@click.option(
    "--apply", "wanted", is_flag=True, help="Restore and remove jobs; without it, only list them."
)
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="Also restore jobs that may have ended in a gap of the log: these may run a second time.",
)
@wait_option(30.0, "Seconds that the mirror may take to catch up, with --apply.")
@by_option
@json_option
def restore(
    url: str | None,
    redis_url: str,
    prefix: str,
    queue: str | None,
    by: str | None,
    *,
    wanted: bool,
    accept_gaps: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """List the jobs that a loss of data in Redis affects: jobs that are live or lost in SQL and missing in Redis, and
    jobs that have ended in SQL and will run again. Also list the changes of schedules that Redis lost, and the pauses
    and resumes of scopes by operators.

    With --apply, the command enqueues the missing jobs again under their own ids, and removes jobs that have ended
    unless they run. It also puts back what was set live: schedules, their pauses and their removals. It also repeats
    the operators' pauses and resumes of scopes. Workers themselves declare the schedules of their code again. The
    command needs a running mirror, and the arguments in the log: App(audit_payload="full"). If the command was
    interrupted, run it again. If the log has a gap, a job without later events may have ended in the gap: such jobs are
    listed as uncertain, and not restored without --accept-gaps. The exit status is 0 if no job is left to restore or
    remove, 2 if something could not be restored or removed, 1 if the command could not do its work.
    """
    with current(url) as database:
        from rq_core.connections.client import Client
        from sql_audit.upkeep.restore import restore_jobs
        from sql_audit.upkeep.survey import survey

        marks = known_watermarks(database.readers, queue)
        who = actor(by)
        with Client(redis_url, prefix=prefix, name="audit") as client:
            marks = _from_here(client, database, marks, queue)
            if not wanted:
                found = {mark.queue: survey(client, database, mark.queue) for mark in marks}
            else:
                with progress(shown=not as_json) as on_progress:
                    done = {
                        mark.queue: restore_jobs(
                            client,
                            database,
                            mark.queue,
                            by=who,
                            accept_gaps=accept_gaps,
                            wait_s=wait_s,
                            on_progress=functools.partial(on_progress, mark.queue),
                        )
                        for mark in marks
                    }
                _print_applied(done, as_json=as_json)
                raise SystemExit(0 if all(each.complete for each in done.values()) else 2)
    if as_json:
        queues = {name: dataclasses.asdict(each) for name, each in found.items()}
        print_answer({"queues": queues}, marks)
        return
    for name, each in found.items():
        uncertain = sum(job.uncertain is not None and job.over is None for job in each.lost)
        apart = f", {uncertain} that may have ended in a gap" if uncertain else ""
        lost = len(each.lost) - uncertain
        say(f"{name}: {counted(lost, 'job')} lost, {len(each.revived)} revived{apart}")
        if each.forgotten:
            one = "id of a job that has ended must be remembered, and Redis has forgotten it"
            many = "ids of jobs that have ended must be remembered, and Redis has forgotten them"
            say(f"  {counted(each.forgotten, one, many)}")
        if each.names:
            one = (
                "name of a job that has ended is still held (Throttle), and Redis has forgotten it"
            )
            many = "names of jobs that have ended are still held (Throttle), and Redis has forgotten them"
            say(f"  {counted(each.names, one, many)}")
        for job_id, is_known in each.boxes.items():
            why = each.why_lost.get(job_id)
            say(f"  steps lost: {job_id}{_not_put_back(why) if not is_known else ''}")
        for schedule in each.schedules:
            say(f"  {_lost_schedule(schedule)}")
        for pause in each.pauses:
            say(f"  {_lost_pause(pause)}")
        for job in each.lost:
            say(f"  {_kind(job)}: {_lost_job(job)}")
        for job_ in each.revived:
            say(
                f"  revived: {job_.job_id}  {job_.state}, {job_.finished} at {job_.number}: "
                "it will run again"
            )
    print_marks(terminal(), marks)


def _from_here(
    client: Client, database: Database, marks: list[Watermark], queue: str | None
) -> list[Watermark]:
    """Return the watermarks of the queues that are mirrored from this Redis, under the client's key prefix. (A
    watermark is the last event of a queue that SQL has.)

    Raises SourceDiffers if the log belongs to another Redis, if ``queue`` has another prefix, or if no queue is left.
    """
    from sql_audit.mirror import source_registry
    from sql_audit.mirror.redis_access import Outbox

    source = Outbox(client)
    away = source_registry.elsewhere(database, client.prefix)
    here = [mark for mark in marks if mark.queue not in away]
    if not here or queue in away:
        name = queue or marks[0].queue
        why = f"queue {name} is mirrored from prefix {away[name]}"
        raise source_registry.refusal(source, database, why)
    source_registry.check_source(source, database)
    return here


NO_VALUES = (
    '; its steps cannot be put back: the log does not have what they returned (audit_result="full")'
)
NO_SIGNALS = (
    "; signals that no wait had taken must be sent again: the log does not have what they brought"
    ' (audit_payload="full")'
)


def _kind(job: LostJob) -> str:
    return "lost" if job.uncertain is None or job.over is not None else "uncertain"


def _lost_job(job: LostJob) -> str:
    """Return a line about a lost job: its id, its task, its last state, and what prevents or complicates its
    restore.
    """
    words = f"{job.job_id}  {job.task or '?'}  was {job.was}"
    if job.over is not None:
        return f"{words}; needs no other run: {job.over}"
    went_on = ", a worker continued it" if job.ran_on else ""
    if job.unknown is not None:
        return f"{words}{went_on}; cannot be put back: {job.unknown}"
    steps = (
        _not_put_back(job.why_lost) if job.steps_lost else NO_SIGNALS if job.signals_lost else ""
    )
    if job.uncertain is not None:
        return f"{words}{went_on}; {job.uncertain}{steps}"
    return f"{words}{went_on}{steps}"


def _lost_pause(lost: LostPause) -> str:
    """Return a line about an operator's change that Redis lost."""
    if lost.until_ms is None:
        return f"scope {lost.scope}: Redis lost that {lost.by} resumed it"
    until = (
        "until it is resumed" if lost.until_ms >= FOREVER_MS else f"until {readable(lost.until_ms)}"
    )
    return f"scope {lost.scope}: Redis lost that {lost.by} paused it {until}"


def _lost_schedule(lost: LostSchedule) -> str:
    """Return a line about a schedule: which change Redis lost, and what prevents or complicates putting it back."""
    what = {
        "put": f"its rule, which was set live{', and its pause' * (lost.state == 'paused')}",
        "pause": "its pause",
        "resume": "that it was resumed",
        "remove": "its removal",
    }
    words = f"schedule {lost.name}: Redis lost {what[lost.wants]}"
    if lost.unknown is not None:
        return f"{words}; cannot be put back: {lost.unknown}"
    return f"{words}; {lost.uncertain}" if lost.uncertain is not None else words


def _say_steps(done: Applied) -> None:
    if done.boxes:
        say(f"  the saved steps of {counted(done.boxes, 'job')} in Redis put back")
    for job_id in done.steps_lost:
        say(f"  steps lost: {job_id}{_not_put_back(done.why_lost.get(job_id))}")
    for job_id in done.signals_lost:
        say(f"  signals lost: {job_id}{NO_SIGNALS}")


def _not_put_back(why_lost: str | None) -> str:
    return NO_VALUES if why_lost is None else f"; {why_lost}"


def _print_applied(done: dict[str, Applied], *, as_json: bool) -> None:
    if as_json:
        queues = {
            name: dataclasses.asdict(each) | {"complete": each.complete}
            for name, each in done.items()
        }
        print_json({"queues": queues})
        return
    for name, each in done.items():
        say(f"{name}: {counted(each.restored, 'job')} restored, {each.removed} removed")
        if each.remembered:
            one, many = "id of a job that has ended is", "ids of jobs that have ended are"
            say(f"  {counted(each.remembered, one, many)} remembered again")
        if each.named:
            one = "name of a job that has ended is held again"
            say(f"  {counted(each.named, one, 'names of jobs that have ended are held again')}")
        back = [f"what was in use of {scope}, and its pause" for scope in each.scopes]
        _say_steps(each)
        for what in (*back, *map(_lost_pause, each.pauses), *map(_lost_schedule, each.schedules)):
            say(f"  put back: {what}")
        for schedule in each.schedules_left:
            say(f"  left: {_lost_schedule(schedule)}")
        for job in (*each.over, *each.uncertain, *each.unknown):
            say(f"  {_kind(job)}: {_lost_job(job)}")
        for job_id in each.held:
            say(f"  not put back: {job_id}  another job holds its name")
        for job_id, state in each.alive.items():
            say(f"  not lost: {job_id}  is {state} in Redis")
        for job_id, state in each.left.items():
            say(f"  left alone: {job_id}  is {state} in Redis: cancel it if it must not run")
    if any(each.uncertain for each in done.values()):
        say(
            "some of these jobs may have run to their end: --accept-gaps puts them back, and they may run twice",
            err=True,
        )
    if any(each.unknown for each in done.values()):
        say(
            "the log does not keep these jobs' arguments: only their producer can enqueue them again, under the same"
            " ids; "
            'App(audit_payload="full") keeps the arguments of jobs to come in the log',
            err=True,
        )
