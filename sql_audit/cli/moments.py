"""The commands ``why`` (the waits of a job) and ``at`` (the state of a queue at a time)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import click

from rq_core.cli.options import Instant, json_option, queue_option
from rq_core.cli.text import say, terminal
from rq_core.model.lib.text import counted
from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.pauses import cause_says
from sql_audit.cli.options import asking, audit_option, known_watermarks
from sql_audit.cli.text import in_ms, print_answer, print_marks
from sql_audit.times import readable

if TYPE_CHECKING:
    from sql_audit.queries.moments import Moment
    from sql_audit.queries.pauses import JobPause
    from sql_audit.queries.waits import JobWait


@click.command("why")
@click.argument("job")
@audit_option
@queue_option
@json_option
def why_command(job: str, url: str | None, queue: str | None, as_json: bool) -> None:
    """Show each wait of JOB, its cause, and the jobs in front. Also show when JOB was scheduled or lost its worker."""
    with asking(url) as engine:
        from sql_audit.queries import history, waits

        answers = waits.why(engine, job, queue)
        marks = history.watermarks_of(engine, {answer.queue for answer in answers})
    if as_json:
        print_answer({"jobs": [dataclasses.asdict(answer) for answer in answers]}, marks)
        return
    for answer in answers:
        lane = f", lane {answer.lane}" if answer.lane else ""
        say(f"job {job} in {answer.queue}: {answer.state}{lane}")
        if answer.state == "scheduled" and answer.due_ms is not None:
            say(f"  is due at {readable(answer.due_ms)}")
        periods: list[JobPause | JobWait] = [*answer.pauses, *answer.waits]
        for period in sorted(periods, key=_span_of):
            if isinstance(period, waits.JobWait):
                _say_wait(period)
            else:
                until = "on" if period.until_ms is None else f"until {readable(period.until_ms)}"
                since = readable(period.since_ms)
                say(f"  could not be claimed from {since} {until}: {period.why}")
        if answer.pruned is not None:
            say(f"  some waits may be missing: {answer.pruned.says}")
    print_marks(terminal(), marks)


def _span_of(period: JobPause | JobWait) -> tuple[float, float]:
    """Return a sort key for the waits and pauses of a job: the beginning and the end (Unix ms; infinite if not ended).

    If two of them begin at the same time, the one that ended first sorts first.
    """
    return period.since_ms, math.inf if period.until_ms is None else period.until_ms


def _say_wait(wait: JobWait) -> None:
    """Print how long a job waited, the cause of the wait, and the jobs that were in front."""
    ended = " and still waits"
    if wait.claim is not None:
        ended = f" until claim {wait.claim} by {wait.worker}"
    elif wait.ended is not None:
        forgotten = wait.ended != "cancelled"
        ended = " until Redis forgot it" if forgotten else " until it was cancelled"
    least = "at least " if wait.judged_from_ms is not None else ""
    cause = "no cap held it back: no worker was free, or the queue was paused"
    if wait.held_back_by:
        cause = f"held back by {wait.held_back_by}"
    elif wait.claim is not None and not wait.waited_ms:
        cause = "nothing held it back"
    say(
        f"  waited {in_ms(wait.waited_ms)} from {readable(wait.since_ms)}{ended}; {cause}; "
        f"{least}{counted(wait.others_claimed, 'claim')} of other jobs began meanwhile"
    )
    if wait.judged_from_ms is not None:
        say(f"    from {readable(wait.judged_from_ms)} on:")
    for pause in reversed(wait.pauses):
        until = (
            "until resume-scope" if pause.until_ms is None else f"until {readable(pause.until_ms)}"
        )
        if pause.resumed_at_ms is not None:
            until += f", resumed at {readable(pause.resumed_at_ms)}"
        says = cause_says(dataclasses.asdict(pause))
        say(f"    {pause.scope} was paused from {readable(pause.at_ms)} {until}, {says}")
    for each in wait.in_front:
        named = f", the last {', '.join(each.named)}" if each.named else ""
        word = "exhausted" if " per " in each.limit else "full"
        word = "paused" if is_breaker(each.scope) else word
        say(
            f"    {each.scope} ≤ {each.limit}: {word} for {in_ms(each.full_ms)}, "
            f"{least}{counted(each.holders, 'claim')} of other jobs{named}"
        )


@click.command(name="at")
@click.argument("at_ms", type=Instant(), metavar="TIME")
@audit_option
@queue_option
@json_option
def at_command(at_ms: int, url: str | None, queue: str | None, as_json: bool) -> None:
    """Show the jobs that were running, waiting and scheduled at TIME, and the holders of each scope.

    TIME is like '2026-11-21 10:00' (UTC if no zone is given), 10:00 (the last time that it was ten), '10m ago' (s, m,
    h, d, w or y), now or Unix ms. Jobs that were scheduled at TIME are counted only if they still are; `rq-core audit
    history ID` shows the others.
    """
    with asking(url) as engine:
        from sql_audit.queries.moments import at

        marks = known_watermarks(engine, queue)
        answers = {mark.queue: at(engine, mark.queue, at_ms) for mark in marks}
    if as_json:
        print_answer({"queues": {name: _document(each) for name, each in answers.items()}}, marks)
        return
    for name, answer in answers.items():
        _say_moment(name, answer)
    print_marks(terminal(), marks)


def _document(answer: Moment) -> dict[str, Any]:
    scopes = {
        scope: {"cap": cap, "holders": holders} for scope, (cap, holders) in answer.scopes.items()
    }
    return dataclasses.asdict(answer) | {"scopes": scopes}


def _say_moment(queue: str, answer: Moment) -> None:
    """Print the jobs that ran and the jobs that waited in a queue at one moment, and the number of claims that each cap
    counted then in each of its scopes, such as ``tenant=acme``.
    """
    from sql_audit.queries.history import under
    from sql_audit.queries.occupancy import COUNTED_MAX

    least = "at least " if answer.more_ran else ""
    say(f"{queue} at {readable(answer.at_ms)}: {least}{len(answer.running)} running")
    for claim in answer.running:
        scopes = under(claim.scopes)
        say(
            f"  {claim.job_id}  {claim.task or '?'}  claim {claim.claim} by {claim.worker} since "
            f"{readable(claim.claimed_at_ms)}{f', under {scopes}' if scopes else ''}"
        )
    least = "at least " if answer.more_waited else ""
    least_due = "at least " if answer.scheduled_count >= COUNTED_MAX else ""
    say(
        f"{least}{answer.waiting_count} waiting, {least_due}{answer.scheduled_count} scheduled for later"
    )
    for job in answer.waiting[:20]:
        lane = f", lane {job.lane}" if job.lane else ""
        say(f"  {job.job_id}  {job.task or '?'}  since {readable(job.ready_at_ms)}{lane}")
    if answer.waiting_count > 20:
        say(f"  and {least}{answer.waiting_count - 20} more")
    for scope, (cap, holders) in sorted(answer.scopes.items()):
        limit = "any" if cap is None else cap
        say(f"{scope}: {len(holders)} of {limit}")
    if answer.pruned is not None:
        say(f"some jobs may be missing: {answer.pruned.says}")
    for caveat in answer.caveats:
        say(caveat)
