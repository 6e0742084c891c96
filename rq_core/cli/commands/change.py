"""Commands that change jobs and queues. The queue's log (its events) has each change, with the operator and the
reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.filters import change_many, check_either, filter_options, split_options
from rq_core.cli.options import (
    actor,
    audited_options,
    connect,
    json_option,
    known_queues,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.text import say
from rq_core.model.lib.text import counted
from rq_core.model.limits.limit import DECLARED, FOREVER_MS, shown, wanted_limit
from rq_core.model.limits.scopes import family_of
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import PRIORITIES
from rq_core.views.text import utc

if TYPE_CHECKING:
    from rq_core.app.options import PriorityName
    from rq_core.connections.client import Client
    from rq_core.protocol.calls.pauses import PauseChange
    from rq_core.protocol.engine.plan import Plan

    Verb = Callable[..., Plan[dict[str, str]]]


def _id_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (json_option, server_options, audited_options, filter_options, queue_option):
        function = decorate(function)
    return click.argument("ids", metavar="ID...", nargs=-1)(function)


@click.command()
@_id_options
def cancel(ids: Sequence[str], **given: Any) -> None:
    """Cancel jobs, given by their ids, or all jobs of a queue that match a filter.

    A job that waits is removed at once. A job that runs is asked to stop; its worker sees the request when
    it next extends its leases. A filter selects only jobs that wait; with --state running, it selects jobs that run.
    The children of a durable job are cancelled after it.
    """
    asked, given = split_options(given)
    check_either(ids, asked)
    with connect(given["redis_url"], given["prefix"]) as client:
        if not ids:
            change_many(client, "cancel", asked, given)
            return
        _apply(client, client.calls.families.cancel, ids, given, done={"cancelled", "cancelling"})


@click.command()
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES, case_sensitive=False),
    help="The jobs join the tail of the line of this priority.",
)
@click.option("--delay", type=float, metavar="SECONDS", help="Seconds until the jobs may run.")
@click.option("--now", is_flag=True, help="The jobs may run at once.")
@click.option(
    "--expires",
    type=float,
    metavar="SECONDS",
    help="Seconds after which no worker begins the jobs any more.",
)
@click.option("--no-deadline", is_flag=True, help="The jobs do not expire any more.")
@click.option(
    "--if-line",
    "line",
    default="",
    metavar="LINE",
    help="Edit the job only if this is its state line, as `rq-core job ID --json` prints it.",
)
@_id_options
def edit(
    ids: Sequence[str],
    priority: PriorityName | None,
    delay: float | None,
    expires: float | None,
    line: str,
    *,
    now: bool,
    no_deadline: bool,
    **given: Any,
) -> None:
    """Change the priority, the due time or the deadline of jobs that wait, given by their ids or by a filter.

    A job that runs or is dead is not changed. Options that are left out, and the arguments, do not change.
    """
    from rq_core.app.handles.edit import change_of
    from rq_core.app.options import EditOptions

    asked, given = split_options(given)
    check_either(ids, asked)
    if line and not ids:
        raise click.UsageError("--if-line is for jobs given by their ids")
    if no_deadline and expires is not None:
        raise click.UsageError("--no-deadline does not go with --expires")
    # The options are the same in every queue.
    options: EditOptions = {"priority": priority, "delay": delay, "now": now}
    if no_deadline or expires is not None:
        options["expires"] = expires
    change = change_of("-", **options)
    with connect(given["redis_url"], given["prefix"]) as client:
        if not ids:
            change_many(client, "edit", asked, given, change)
            return
        verb = partial(client.calls.admin.edit, change=change, line=line)
        _apply(client, verb, ids, given, done={"edited", "same"})


@click.command()
@_id_options
def requeue(ids: Sequence[str], **given: Any) -> None:
    """Make dead jobs ready again, given by their ids or by a filter: their failures are reset, and they join the tail
    of the line. The dead children of a durable job are requeued before the job. So the children that died run again,
    and the children that succeeded do not."""
    asked, given = split_options(given)
    check_either(ids, asked)
    with connect(given["redis_url"], given["prefix"]) as client:
        if not ids:
            change_many(client, "requeue", asked, given)
            return
        _apply(client, client.calls.families.requeue, ids, given, done={"requeued"})


@click.command("prune")
@_id_options
def prune_command(ids: Sequence[str], **given: Any) -> None:
    """Remove dead jobs, given by their ids or by a filter, before their retention ends. Their history stays in SQL."""
    asked, given = split_options(given)
    check_either(ids, asked)
    with connect(given["redis_url"], given["prefix"]) as client:
        if not ids:
            change_many(client, "prune", asked, given)
            return
        _apply(client, client.calls.admin.prune, ids, given, done={"pruned"})


def _apply(
    client: Client, verb: Verb, ids: Sequence[str], given: dict[str, Any], done: set[str]
) -> None:
    """Change the jobs with ``verb`` (such as cancel), and print the outcome of each job.

    Without --queue, find the queue of each job first. Raises ClickException if a job has an outcome that is not in
    ``done``.
    """
    outcomes: dict[str, str] = {}
    for queue, chosen in _by_queue(client, ids, given["queue"]).items():
        outcomes |= client.run(verb(queue, chosen, by=actor(given["by"]), why=given["reason"]))
    outcomes = {job_id: outcomes.get(job_id, "gone") for job_id in ids}
    if given["as_json"]:
        print_json(outcomes)
    else:
        for job_id, outcome in outcomes.items():
            say(f"{job_id} {outcome}")
        if not outcomes:
            say("no jobs")
    failed = [job_id for job_id, outcome in outcomes.items() if outcome not in done]
    if failed:
        raise click.ClickException(
            f"{len(failed)} of {counted(len(outcomes), 'job')} not {min(done)}:"
            f" {', '.join(f'{i} ({_meaning(outcomes[i])})' for i in failed[:3])}"
            f"{'…' if len(failed) > 3 else ''}"
        )


def _meaning(outcome: str) -> str:
    if outcome == "held":
        return "held: another job has its name"
    if outcome == "changed":
        return "changed: its state line is another one by now"
    if outcome == "never":
        return "never: it would become ready at its deadline or later"
    return "gone: not in Redis, perhaps finished" if outcome == "gone" else f"it is {outcome}"


def _by_queue(client: Client, ids: Sequence[str], queue: str | None) -> dict[str, list[str]]:
    """Return queue → ids of its jobs. A job that no queue has is left out. If ``queue`` is given, all ids are assumed
    to be of this queue."""
    where = known_queues(client, queue)
    if queue is not None:
        return {queue: list(dict.fromkeys(ids))} if ids else {}
    found: dict[str, list[str]] = {}
    for job_id in dict.fromkeys(ids):
        job = client.run(client.calls.reads.job(job_id, where))
        if job is not None:
            found.setdefault(job.queue, []).append(job_id)
    return found


def _queue_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (json_option, server_options, audited_options):
        function = decorate(function)
    return click.argument("queue")(function)


@click.command("pause")
@_queue_options
def pause_command(queue: str, **given: Any) -> None:
    """Stop claims of jobs in QUEUE.

    Running jobs continue, and the queue accepts new jobs. Leases still expire, and delayed jobs still become ready.
    """
    _configure(queue, {"paused": 1}, given, {"changed": "paused", "same": "was paused already"})


@click.command()
@_queue_options
def resume(queue: str, **given: Any) -> None:
    """Allow claims of jobs in QUEUE again."""
    _configure(queue, {"paused": 0}, given, {"changed": "resumed", "same": "was not paused"})


def _scope_options(function: Callable[..., Any]) -> Callable[..., Any]:
    return _queue_options(click.argument("scope")(function))


@click.command("pause-scope")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="How long the pause lasts; by default until resume-scope.",
)
@_scope_options
def pause_scope(queue: str, scope: str, seconds: float | None, **given: Any) -> None:
    """Let no job of SCOPE in QUEUE begin for a while. Jobs that run already run on, and no attempt is spent.

    SCOPE is one key of a rate or a breaker, as `rq-core caps QUEUE` lists it. After the pause, the jobs of a rate begin
    one after the other, and a breaker awaits a probe. `rq-core cap QUEUE SCOPE 0` stops any scope.
    """
    from rq_core.model.lib.durations import ms_of

    for_ms = None if seconds is None else max(1, ms_of("for", seconds))
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        by, why = actor(given["by"]), given["reason"]
        plan = client.calls.pauses.pause(queue, scope, for_ms=for_ms, by=by, why=why)
        _print_pause(queue, scope, client.run(plan), given)


@click.command("resume-scope")
@_scope_options
def resume_scope(queue: str, scope: str, **given: Any) -> None:
    """End any pause of SCOPE in QUEUE. Its jobs may begin at once."""
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        plan = client.calls.pauses.resume(queue, scope, by=actor(given["by"]), why=given["reason"])
        _print_pause(queue, scope, client.run(plan), given)


def _print_pause(queue: str, scope: str, change: PauseChange, given: dict[str, Any]) -> None:
    if given["as_json"]:
        print_json({"queue": queue, "scope": scope, **change._asdict()})
        return
    until = "until resume-scope" if change.until_ms == FOREVER_MS else None
    if until is None and change.until_ms is not None:
        until = f"until {utc(change.until_ms)}"
    words = {
        "paused": f"is paused {until}",
        "kept": f"was paused already, {until}",
        "resumed": "is resumed",
        "open": "was not paused",
    }
    say(f"{scope} {words[change.outcome]}")


def _configure(
    queue: str, values: dict[str, int], given: dict[str, Any], words: dict[str, str]
) -> None:
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        outcomes = client.run(
            client.calls.admin.configure(queue, values, by=actor(given["by"]), why=given["reason"])
        )
    if given["as_json"]:
        print_json({"queue": queue, **outcomes})
        return
    for name, outcome in outcomes.items():
        what = queue if name == "paused" else f"{queue} {SETTINGS[name].shown}"
        say(f"{what} {words.get(outcome, outcome)}")


NAMES: Final = {setting.shown: name for name, setting in SETTINGS.items()}

SETTINGS_HELP: Final = "\n".join(
    [
        "Show QUEUE's settings, or change those given as NAME=VALUE:\n\n\b",
        *(
            f"{s.shown:<18} {s.meaning}{' (seconds)' if s.name.endswith('_ms') else ''}"
            for s in SETTINGS.values()
        ),
    ]
)


@click.command("set", help=SETTINGS_HELP, short_help="Show or change a queue's settings.")
@click.argument("queue")
@click.argument("assignments", metavar="[NAME=VALUE]...", nargs=-1)
@audited_options
@server_options
@json_option
def change_settings(queue: str, assignments: Sequence[str], **given: Any) -> None:
    """Show or change a queue's settings."""
    values = dict(parse_assignment(text) for text in assignments)
    if values:
        _configure(queue, values, given, {"same": "is the same"})
        return
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        settings = client.run(client.calls.reads.counts(queue)).settings
    if given["as_json"]:
        print_json(settings)
        return
    for name, value in settings.items():
        say(SETTINGS[name].assigned(value))


def parse_assignment(text: str) -> tuple[str, int]:
    """Parse an assignment like ``lease=30`` to (field of the setting, value). Raises click.UsageError."""
    word, found, value = text.partition("=")
    name = NAMES.get(word.replace("_", "-"))
    if not found or name is None:
        known = ", ".join(NAMES)
        raise click.UsageError(
            f"{text!r} is not a setting: give NAME=VALUE with one of the names {known}"
        )
    try:
        if not name.endswith("_ms"):
            return name, int(value)
        from rq_core.model.lib.durations import ms_of

        return name, ms_of(word, float(value), minimum=SETTINGS[name].minimum / 1000)
    except ValueError:
        raise click.UsageError(f"{word} must be a number, not {value!r}") from None


@click.command()
@click.argument("queue")
@click.argument("scope")
@click.argument("limit", metavar="N|none|code")
@click.option("--force", is_flag=True, help="Allow a task that the queue has not seen yet.")
@click.option(
    "--version",
    type=click.IntRange(0),
    metavar="V",
    help="Change the limit only if it still has this version (0: no limit is stored).",
)
@audited_options
@server_options
@json_option
def cap(queue: str, scope: str, limit: str, **given: Any) -> None:
    """Change the limit of SCOPE in QUEUE, at once and for every worker.

    SCOPE is queue, task=NAME, a family like send.tenant (its limit holds for each key), or one key, like
    send.tenant=acme. The limit is a number; 0 stops the scope, and none removes the limit. A rate is written 100/60s,
    or 100/60s/5 with bursts of 5. A breaker is written 20/60s/30000: 20 failures in 60 s, and a cooldown of 30,000 ms.
    If the new limit has no cooldown (20/60s), the cooldown stays as it is. Lowering a limit ends no running job. The
    word code in place of the limit removes a limit that an operator set: the limit that the workers' code declares
    holds again, or, for one key, the limit of its family.
    """
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        if not given["force"]:
            client.run(client.calls.caps.check_task(queue, scope))
        made = client.run(
            client.calls.caps.change(
                queue,
                scope,
                wanted_limit(limit),
                version=given["version"],
                by=actor(given["by"]),
                why=given["reason"],
            )
        )
    if given["as_json"]:
        print_json(
            {"queue": queue, "scope": scope, "limit": str(made.limit), "version": made.version}
            | {"outcome": made.outcome}
        )
        return
    done = "is now" if made.outcome == "changed" else "was already"
    # A scope without a limit of its own has the limit of its family.
    which = f"version {made.version}" if made.version else f"as {family_of(scope)}"
    if limit == DECLARED and made.version:
        which += ", from code"
    say(f"{scope} {done} {shown(made.limit)} ({which})")
