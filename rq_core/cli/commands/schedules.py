"""The commands ``rq-core schedules``, which lists schedules, and ``rq-core schedule …``, which shows or changes one
schedule."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

import click

from rq_core.cli.commands.lists import show
from rq_core.cli.lazy import CommandGroup
from rq_core.cli.options import (
    Instant,
    actor,
    audit_url_option,
    audited_options,
    connect,
    json_option,
    known_queues,
    print_json,
    server_options,
)
from rq_core.cli.text import say
from rq_core.errors import AuditNotConfigured
from rq_core.model.lib.url import AUDIT_URL_VARIABLE
from rq_core.views.lists import LISTS
from rq_core.views.text import utc

if TYPE_CHECKING:
    from rq_core.app.schedules import ScheduleOptions
    from rq_core.connections.client import Client
    from rq_core.model.recurrence import Recurrence
    from rq_core.model.schedule import Schedule
    from rq_core.protocol.calls.schedules import Declaration


@click.command()
@click.argument("queue", required=False)
@server_options
@json_option
def schedules(queue: str | None, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show the schedules of QUEUE, or of all queues, and when each is due next."""
    view = LISTS["schedules"]
    with connect(redis_url, prefix) as client:
        queues = known_queues(client, queue)
        found = client.run(view.query(client.calls, queues))
    show(view, found, as_json=as_json)


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Show the next instants of a schedule, or change it."""


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (json_option, server_options):
        function = decorate(function)
    return click.argument("queue")(click.argument("name")(function))


def _audited(function: Callable[..., Any]) -> Callable[..., Any]:
    return audited_options(_named(function))


@schedule.command("next")
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many."
)
@click.option(
    "--from",
    "from_ms",
    type=Instant(),
    metavar="TIME",
    help="Show the instants from this time on, such as '2026-10-25 02:00+02:00' (UTC if no zone is given).",
)
@_named
def next_command(queue: str, name: str, count: int, from_ms: int | None, **given: Any) -> None:
    """Show the next instants of NAME in QUEUE, in its time zone and in UTC.

    If daylight saving begins or ends between two instants, their offsets differ. A wall time that clocks skip fires at
    the end of the gap; a wall time that comes twice fires the first time. With --from, the instants may be in the past:
    they are computed from the rule that is stored now, also for a schedule that is paused.
    """
    with connect(given["redis_url"], given["prefix"]) as client:
        rule, stored = _stored_rule(client, queue, name)
    if stored.state == "removed":
        raise click.ClickException(_is_removed(queue, name))
    if from_ms is not None:
        after = from_ms - 1
    else:
        after = stored.next_ms - 1 if stored.state == "on" else round(time.time() * 1000)
    instants = [at for at, _ in zip(rule.instants(after), range(count), strict=False)]
    if given["as_json"]:
        print_json([{"nominal_ms": at, "due_ms": at + rule.shift_ms} for at in instants])
        return
    for at in instants:
        say(_words(at, rule))
    if not instants:
        say(f"{name} fires no more: the next instant would lie after the year 2285")


@schedule.command("history")
@click.argument("queue")
@click.argument("name")
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many."
)
@audit_url_option("The audit database, which has the history.")
@json_option
def history_command(
    queue: str, name: str, count: int, audit_url: str | None, *, as_json: bool
) -> None:
    """Show the last instants of NAME in QUEUE: the outcome of each, and why it was late, skipped or missed.

    Changes of the schedule are listed between the instants, in the order of time. Times are in UTC. The queue must be
    mirrored into the audit log: `rq-core audit run`.
    """
    found = _history(queue, name, count, audit_url)
    if as_json:
        print_json(found)
        return
    say(f"schedule {name} of queue {queue}: {found['says']}")
    lines = [(each["at_ms"], _tick_line(each)) for each in found["ticks"]]
    lines += [
        (
            each["at_ms"],
            f"{utc(each['at_ms'])}  changed   version {each['version']}: {each['says']}",
        )
        for each in found["changes"]
    ]
    for _, line in sorted(lines, key=lambda each: each[0]):
        say(line)
    if found["pruned"] is not None and len(found["ticks"]) < count:
        say("earlier instants may be missing: a prune has removed old jobs with their instants")


def _history(queue: str, name: str, count: int, audit_url: str | None) -> dict[str, Any]:
    """Return the audit log's data about a schedule. Raises AuditNotConfigured without an audit database.

    ``count``: number of instants. Raises ClickException if the log does not have the schedule.
    """
    from rq_core.model import plugins
    from rq_core.model.keys import check_name
    from rq_core.model.recurrence import check_schedule_name

    check_name("queue", queue)
    check_schedule_name(name)
    if audit_url is None:
        raise AuditNotConfigured(
            f"the history is in the audit database: pass --audit URL or set {AUDIT_URL_VARIABLE}"
        )
    with contextlib.closing(plugins.questions_opener()(audit_url)) as log:
        found = log.schedule(queue, name, count)
    if not found["ticks"] and not found["changes"]:
        raise click.ClickException(f"the log has nothing of a schedule {name} of queue {queue}")
    return found


def _tick_line(tick: dict[str, Any]) -> str:
    due = f", due at {utc(tick['due_ms'])}" if tick["due_ms"] != tick["nominal_ms"] else ""
    return (
        f"{utc(tick['nominal_ms'])}  {tick['outcome']:<9} {utc(tick['at_ms'])}{due}: {tick['says']}"
    )


def _words(at: int, rule: Recurrence) -> str:
    from zoneinfo import ZoneInfo

    moment = datetime.fromtimestamp(at / 1000, UTC)
    local = moment.astimezone(ZoneInfo(rule.tz))
    shift = f", due {rule.shift_ms / 1000:g} s later" if rule.shift_ms else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S %z}  ({moment:%Y-%m-%d %H:%M:%S} UTC{shift})"


def _stored_rule(
    client: Client, queue: str, name: str, hint: str = ""
) -> tuple[Recurrence, Schedule]:
    """Return a schedule's parsed rule, and the stored schedule. Raises ClickException if the queue lacks the schedule.

    ``hint``: the end of the error's text.
    """
    from rq_core.model.recurrence import from_json

    known_queues(client, queue)
    stored = client.run(client.calls.schedules.stored(queue, [name])).get(name)
    if stored is None:
        raise click.ClickException(f"queue {queue} has no schedule {name}{hint}")
    return from_json(name, stored.rule), stored


@schedule.command("set")
@click.option("--cron", help='Five fields, like "0 2 * * *", or @daily.')
@click.option("--tz", help="The time zone of --cron, like Europe/Berlin; UTC unless given.")
@click.option("--every", type=float, metavar="SECONDS", help="An interval, in place of --cron.")
@click.option(
    "--spread",
    type=float,
    metavar="SECONDS",
    help="Spread the schedules of a queue over these seconds.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "allow", "queue", "replace"]),
    help="What happens while the job of an earlier instant is alive; skip unless given.",
)
@click.option(
    "--catch-up",
    type=click.Choice(["latest", "skip"]),
    help="After an outage: one job for all missed instants (latest), or none that is a minute late (skip).",
)
@click.option("--grace", type=float, metavar="SECONDS", help="How late an instant may be run.")
@click.option("--task", help="The task of the job; else the stored job stays.")
@click.option("--json-args", default="{}", metavar="JSON", help="The arguments of --task.")
@click.option("--version", type=click.IntRange(0), metavar="V", help="Only if it has this version.")
@_audited
def set_command(
    queue: str, name: str, task: str | None, json_args: str, version: int | None, **given: Any
) -> None:
    """Store a schedule NAME in QUEUE, or another rule for it.

    The schedule holds at once for every worker, regardless of the declarations in code, until it is changed or removed.
    A new rule replaces the stored rule as a whole.
    """
    how = {
        key: given.pop(key)
        for key in ("cron", "tz", "every", "spread", "overlap", "catch_up", "grace")
    }
    options = {key: value for key, value in how.items() if value is not None}
    with connect(given["redis_url"], given["prefix"]) as client:
        expected = -1
        if task is None:
            known_queues(client, queue)
            made, expected = _with_stored_job(client, queue, name, options)
        else:
            made = _with_job(given, queue, name, task, json_args, options)
        how_made = {"by": actor(given["by"]), "why": given["reason"]}
        version = expected if version is None else version
        changes = client.run(client.calls.schedules.put(queue, [made], version=version, **how_made))
        warning = task and _unregistered(client, queue, task)
    _print(queue, name, changes[name].outcome, changes[name].version, given)
    if warning:
        say(f"rq-core: warning: {warning}", err=True)


def _unregistered(client: Client, queue: str, task: str) -> str:
    """Return a warning if no worker has registered the task in the queue; otherwise an empty text."""
    registered = client.run(client.calls.caps.registered(queue))
    if task in registered:
        return ""
    known = ", ".join(registered) or "none"
    waits = "so its jobs wait until a worker with this task runs"
    return (
        f"no worker has registered the task {task} in queue {queue}, {waits}. Registered: {known}"
    )


def _with_job(
    given: dict[str, Any], queue: str, name: str, task: str, json_args: str, options: dict[str, Any]
) -> Declaration:
    from rq_core.app.app import App
    from rq_core.app.schedules import declaration_of

    try:
        args = json.loads(json_args)
    except ValueError:
        raise click.UsageError(f"--json-args must be a JSON object, not {json_args!r}") from None
    if not isinstance(args, dict):
        raise click.UsageError(f"--json-args must be a JSON object, not {json_args!r}")
    said = cast("ScheduleOptions", options)
    with App(given["redis_url"], prefix=given["prefix"]) as app:
        return declaration_of(name, app.job(queue, task, args), said)


def _with_stored_job(
    client: Client, queue: str, name: str, options: dict[str, Any]
) -> tuple[Declaration, int]:
    """Return a declaration of the schedule with a new rule and its stored job, and the version of the stored schedule.

    With this version, the change cannot overwrite another operator's change of the job. Raises ClickException.
    """
    from rq_core.model.keys import queue_keys
    from rq_core.model.recurrence import recurrence
    from rq_core.model.schedule import JOB_FIELD
    from rq_core.protocol.calls.schedules import Declaration

    before, stored = _stored_rule(client, queue, name, hint=": --task makes one")
    rule = recurrence(name, **{"overlap": before.overlap, **options})
    if rule.overlap != before.overlap:
        raise click.UsageError("--overlap needs --task: it is part of the stored job")
    key = queue_keys(queue, client.calls.delivery.prefix)("schedules")
    read = client.calls.delivery.ask([["HGET", key, f"{name}{JOB_FIELD}"]], queue)
    (packed,) = client.run(read)
    return Declaration(rule, packed or "", 0), stored.version


@schedule.command()
@_audited
def pause(queue: str, name: str, **given: Any) -> None:
    """Stop NAME in QUEUE from enqueueing jobs. No job is enqueued later for instants that pass during the pause."""
    _change("pause", queue, name, given)


@schedule.command()
@_audited
def resume(queue: str, name: str, **given: Any) -> None:
    """Let NAME in QUEUE continue from its next instant, after a pause, a removal, or a time when no code declared
    it."""
    _change("resume", queue, name, given)


@schedule.command()
@_audited
def remove(queue: str, name: str, **given: Any) -> None:
    """Remove NAME from QUEUE. Code that still declares it does not bring it back."""
    _change("remove", queue, name, given)


@schedule.command()
@_audited
def release(queue: str, name: str, **given: Any) -> None:
    """Give NAME in QUEUE back to code: the rule that was set live holds until a worker declares the rule in its code.

    Workers declare schedules when they start, and hourly. Code may declare a new rule, or the rule that it declared
    last; an older rule of the code does not return.
    """
    _change("release", queue, name, given)


@schedule.command()
@_audited
def run(queue: str, name: str, **given: Any) -> None:
    """Enqueue the job of NAME in QUEUE once now, in addition to its instants."""
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        answer = client.run(
            client.calls.schedules.run(queue, name, by=actor(given["by"]), why=given["reason"])
        )
        missing = _missing(client, queue, name) if answer.outcome == "gone" else ""
    if given["as_json"]:
        print_json(
            {"queue": queue, "name": name, "outcome": answer.outcome, "held_by": answer.holder}
        )
    elif answer.outcome == "run":
        say(f"{name} is enqueued")
    if answer.outcome == "gone":
        raise click.ClickException(missing)
    if answer.outcome == "later":
        how = f"`rq-core schedule set {queue} {name} --task TASK …` stores another one"
        raise click.ClickException(f"{name} is not enqueued: its stored job cannot be read; {how}")
    if answer.outcome != "run":
        why = f": {answer.holder} is in its place" if answer.holder else ""
        raise click.ClickException(f"{name} is not enqueued ({answer.outcome}{why})")


def _change(what: str, queue: str, name: str, given: dict[str, Any]) -> None:
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        change = client.calls.schedules.change
        made = client.run(change(queue, name, what, by=actor(given["by"]), why=given["reason"]))
        missing = _missing(client, queue, name) if made.outcome == "gone" else ""
    done, same = _DONE[what]
    if what == "resume":
        done += f", next at {utc(made.next_ms)}"
    if what == "remove" and made.version:
        done += (
            f" although code declares it: `rq-core schedule resume {queue} {name}` brings it back"
        )
    _print(queue, name, made.outcome, made.version, given, (done, same), missing)


_DONE: Final = {
    "pause": ("is paused (version {})", "is paused already"),
    "resume": ("is on again (version {})", "is on already"),
    "remove": ("is removed", "is removed already"),
    "release": (
        "is given back to code (version {}): its rule holds until a worker declares what its code says",
        "is not changed: its rule is what code declared",
    ),
}
"""Two texts for each kind of change: one if the change was made, one if it was not needed."""


def _is_removed(queue: str, name: str) -> str:
    how = f"`rq-core schedule resume {queue} {name}` brings it back"
    return f"schedule {name} of queue {queue} is removed: {how}"


def _missing(client: Client, queue: str, name: str) -> str:
    """Return why a schedule could not be changed: it was removed, or it never existed."""
    stored = client.run(client.calls.schedules.stored(queue, [name])).get(name)
    return _is_removed(queue, name) if stored else f"queue {queue} has no schedule {name}"


def _print(
    queue: str,
    name: str,
    outcome: str,
    version: int,
    given: dict[str, Any],
    words: tuple[str, str] = ("is set (version {})", "is the same"),
    missing: str = "",
) -> None:
    """Print the outcome of a change of a schedule. Raises ClickException if the change was not made.

    ``words``: the texts if the change was made, and if it was not needed. ``missing``: the error's text if the schedule
    is missing.
    """
    if given["as_json"]:
        print_json({"queue": queue, "name": name, "outcome": outcome, "version": version})
    elif outcome in ("changed", "same"):
        say(f"{name} {words[outcome == 'same'].format(version)}")
    if outcome == "gone":
        raise click.ClickException(missing)
    if outcome == "undeclared":
        must = f"no code declares it: `rq-core schedule remove {queue} {name}` ends it"
        raise click.ClickException(f"{name} is not released: {must}")
    if outcome not in ("changed", "same"):
        raise click.ClickException(f"{name} is not changed: {outcome}, version {version} is stored")
