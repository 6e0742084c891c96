"""The commands ``enqueue`` and ``replay``. A replay enqueues copies of jobs that died."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from rq_core.app.clients import Connections
from rq_core.app.producer import MAX_PAYLOAD
from rq_core.cli.filters import PROGRESS_S, filter_of
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
    showing_causes,
    verbose_option,
)
from rq_core.cli.places import app_at
from rq_core.cli.text import say
from rq_core.errors import ArgumentsInvalid
from rq_core.model.lib.text import counted
from rq_core.model.table.machine import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rq_core.app.app import App
    from rq_core.app.handles.handle import JobHandle
    from rq_core.connections.client import Client

ARGS_OPTION: Final = "--json-args"


HOW: Final = (
    f"""the task's arguments go into {ARGS_OPTION}, as in {ARGS_OPTION} '{{"to": "a@b.c"}}'"""
)


class _Command(click.Command):
    """A command whose usage errors also say how to pass the task's arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # Other errors are about the value of a known option.
            if type(error) in (click.UsageError, click.NoSuchOption):
                guess = error.format_message().removeprefix(error.message)
                says = f"{error.message.rstrip('.')}: {HOW}.{guess}"
                raise click.UsageError(says, error.ctx) from None
            raise


@click.command(cls=_Command)
@click.argument("queue")
@click.argument("task")
@click.option(
    ARGS_OPTION,
    "args",
    default="{}",
    metavar="OBJECT",
    help="The task's arguments by name, as a JSON object; - reads it from standard input.",
)
@click.option("--delay", type=float, metavar="SECONDS", help="Seconds until the job may run.")
@click.option(
    "--expires",
    type=float,
    metavar="SECONDS",
    help="Seconds after which no worker begins the job any more.",
)
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES, case_sensitive=False),
    help="Jobs of a higher priority run first.",
)
@click.option("--max-attempts", type=int, metavar="N", help="Failures after which the job is dead.")
@click.option(
    "--id",
    "job_id",
    metavar="ID",
    help="The job's id. While a job of this id is live, the command enqueues nothing.",
)
@click.option(
    "--idempotency-key",
    metavar="TEXT",
    help="A text that makes the job's id, per task, and is remembered: a repeated command enqueues nothing.",
)
@click.option(
    "--remember",
    type=float,
    metavar="SECONDS",
    help="How long the id is remembered, even after the job's end; a day with --idempotency-key.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of a key that the task's code computes by a function, such as tenant=acme.",
)
@click.option(
    "--app",
    "target",
    metavar="MODULE:APP",
    help="Check the arguments against this app's task, and take its options as defaults.",
)
@verbose_option
@server_options
@json_option
@click.pass_context
def enqueue(ctx: click.Context, /, queue: str, task: str, **given: Any) -> None:
    """Enqueue a job of TASK into QUEUE, and print its id.

    A queue that does not exist is created. Without --app, the worker checks the task's name and arguments.
    """
    values = parse_args(sys.stdin.read() if given["args"] == "-" else given["args"])
    with showing_causes(verbose=given["verbose"]):
        app = _app(given["target"])
    if given["target"] is not None and task not in app.tasks:
        from rq_core.errors import UnknownTask

        raise UnknownTask(task=task, known=", ".join(sorted(app.tasks)) or "none")
    keys = parse_keys(given["keys"])
    app.connections = Terminal(*_server(ctx, app, given))
    with app, _saying_how(values):
        handle = app.enqueue(
            queue,
            task,
            values,
            keys=keys,
            delay=given["delay"],
            expires=given["expires"],
            priority=given["priority"],
            max_attempts=given["max_attempts"],
            id=given["job_id"],
            remember=given["remember"],
            idempotency_key=given["idempotency_key"],
        )
        why = _why_not(app, handle, queue, given) if handle.duplicate else ""
    if given["as_json"]:
        print_json(
            {"id": handle.id, "queue": queue, "task": task, "duplicate": handle.duplicate}
            | {"discarded": handle.discarded, "replaced": handle.replaced}
        )
        return
    say(handle.id)
    if handle.duplicate:
        say(f"nothing was enqueued: job {handle.id} {why}", err=True)
    if handle.discarded:
        say(f"job {handle.id} was discarded: a scope of it is full", err=True)


@contextlib.contextmanager
def _saying_how(values: dict[str, Any]) -> Iterator[None]:
    """Add to an error ArgumentsInvalid of the block how to pass arguments, if the operator gave none (``values``)."""
    try:
        yield
    except ArgumentsInvalid as error:
        if values:
            raise
        raise click.UsageError(f"{error}: {HOW}") from None


def _why_not(app: App, handle: JobHandle[Any], queue: str, given: dict[str, Any]) -> str:
    """Return why no job was enqueued, as a phrase about the existing job, whose handle the call returned."""
    asked = given["job_id"]
    if (asked is None and given["idempotency_key"] is None) or asked not in (None, handle.id):
        return "has the unique name of this call"
    if app.client.run(app.client.calls.reads.job(handle.id, [queue])) is not None:
        return "is live"
    return "has ended, and its id is remembered"


class Terminal(Connections):
    """Creates clients with the short timeouts of the command line, for an App."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix=prefix)

    def make_client(self) -> Client:
        """Return a client with the short timeouts of the command line."""
        return connect(self.url, self.prefix)


def parse_keys(given: Sequence[str]) -> dict[str, str]:
    """Parse texts like ``tenant=acme`` to key → value. Raises click.UsageError."""
    keys = {}
    for text in given:
        name, found, value = text.partition("=")
        if not found:
            raise click.UsageError(f"--key must be NAME=VALUE, not {text!r}")
        keys[name] = value
    return keys


def _app(target: str | None) -> App:
    if target is None:
        from rq_core.app.app import App

        return App()
    return app_at(target)


def _server(ctx: click.Context, app: App, given: dict[str, Any]) -> tuple[str, str]:
    """Return the server's URL and the key prefix: from the command line, else from the app in --app, else from the
    environment."""
    told = click.core.ParameterSource.COMMANDLINE
    url = app.redis_url if given["target"] is not None else given["redis_url"]
    prefix = app.prefix if given["target"] is not None else given["prefix"]
    if ctx.get_parameter_source("redis_url") is told:
        url = given["redis_url"]
    if ctx.get_parameter_source("prefix") is told:
        prefix = given["prefix"]
    return url, prefix


def parse_args(text: str) -> dict[str, Any]:
    """Parse a JSON object. Unlike Python, refuse NaN, repeated names and lone surrogates.

    Raises click.UsageError.
    """

    def refuse(why: str) -> NoReturn:
        raise click.UsageError(f"{ARGS_OPTION} {why}")

    def constant(name: str) -> NoReturn:
        refuse(f"has {name}, which is not JSON")

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            refuse("names an argument twice")
        return found

    try:
        value = json.loads(text, parse_constant=constant, object_pairs_hook=object_of)
        # JSON can escape a lone surrogate, which is not valid text.
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        refuse(f"is not JSON: {error.msg} at character {error.pos + 1}")
    except UnicodeEncodeError:
        refuse("has text that is not valid Unicode")
    except (RecursionError, ValueError) as error:
        refuse(f"cannot be read: {error}")
    if not isinstance(value, dict):
        refuse(f'must be a JSON object, like {{"to": "a@b.c"}}, not {json.dumps(value)[:40]}')
    return value


# Copies of jobs.

_NO_TERMS: Final = {"state": None, "older": None}


@click.command()
@queue_option
@click.option("--task", metavar="NAME", help="Jobs of this task.")
@click.option("--error", metavar="TYPE", help="Jobs that died of an error of this type.")
@click.option("--scope", metavar="SCOPE", help="Jobs of this scope, like tenant=acme.")
@click.option(
    "--since", metavar="TIME", help="Jobs that died at this time or later, like 11:00 (UTC)."
)
@click.option("--until", metavar="TIME", help="Jobs that died before this time, like '10m ago'.")
@click.option(
    "--header", multiple=True, metavar="NAME=VALUE", help="Jobs with this header; may be repeated."
)
@click.option(
    "--arg", multiple=True, metavar="NAME=VALUE", help="Jobs with this argument; may be repeated."
)
@click.option(
    "--where", metavar="FILTER", help="Further terms, like 'worker:w-1', as in the search box."
)
@click.option(
    ARGS_OPTION, "json_args", metavar="JSON", help="Arguments that the copies have instead."
)
@click.option(
    "--name",
    metavar="NAME",
    help="The name of the replay; by default one that is made of --json-args. A job is copied once for each name.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Enqueue at most N copies.")
@click.option(
    "--max-payload",
    type=click.IntRange(2),
    default=MAX_PAYLOAD,
    show_default=True,
    metavar="BYTES",
    help="Leave jobs out whose arguments take more bytes as JSON, like App(max_payload=…).",
)
@click.option("--dry-run", is_flag=True, help="Enqueue nothing, and count the jobs.")
@click.option(
    "--yes",
    type=click.IntRange(0),
    metavar="N",
    help="Enqueue the copies, if they are N, as --dry-run has counted.",
)
@audit_url_option("The audit database.")
@audited_options
@server_options
@json_option
def replay(
    queue: str | None,
    audit_url: str | None,
    json_args: str | None,
    name: str | None,
    limit: int | None,
    max_payload: int,
    yes: int | None,
    *,
    dry_run: bool,
    as_json: bool,
    by: str | None,
    reason: str,
    redis_url: str,
    prefix: str,
    **asked: Any,
) -> None:
    """Enqueue a copy of each job that died and matches, by the audit log.

    The id of a copy is the id of the job and the name of the replay, so no job is copied twice, however often the
    command runs. Its arguments come from Redis, or from a log that keeps them. It has the options that the workers
    registered for its task.
    """
    from rq_core.app.app import App

    context = click.get_current_context()
    if dry_run == (yes is not None):
        raise click.UsageError(
            "give either --dry-run, or --yes with the number that it counted", context
        )
    which = filter_of(queue, {**_NO_TERMS, **asked})
    args = _new_args(json_args)
    with connect(redis_url, prefix) as client:
        known_queues(client, which.queue)
    said_at = time.monotonic()

    def progress(matched: int, copied: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PROGRESS_S:
            said_at = time.monotonic()
            say(f"rq-core: {matched:,} match, {copied:,} copied", err=True)

    with App(redis_url, audit_url, prefix=prefix, max_payload=max_payload) as app:
        made = app.replay(which, args=args, name=name, limit=limit, dry_run=True)
        if yes is not None:
            there = made.copied + made.outcomes.get("copied before", 0)
            if yes not in (made.copied, there):
                raise click.ClickException(
                    f"{counted(made.copied, 'job')} would be copied, not {yes:,}: look again with --dry-run"
                )
            made = app.replay(
                which, args=args, name=name, limit=limit, progress=progress, by=actor(by), reason=reason
            )  # fmt: skip
    if as_json:
        print_json(
            {"name": made.name, "filter": str(which), "dry_run": dry_run, "matched": made.matched}
            | {"copied": made.copied, "outcomes": made.outcomes}
        )
        return
    others = [f"{n:,} {word}" for word, n in sorted(made.outcomes.items()) if word != "copied"]
    done = "to copy" if dry_run else "copied"
    left = f"; left out: {', '.join(others)}" if others else ""
    say(f"{counted(made.copied, 'job')} {done}, as ID.r{made.name}{left}")


def _new_args(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError("--json-args must be a JSON object")
    return found
